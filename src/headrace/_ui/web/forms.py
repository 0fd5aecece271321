"""Forms: the fields of a POST, bounded, and the page that follows."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request

from headrace._ui.actions import Form, Refused
from headrace._ui.web.rendering import to

FORM_BYTES = 2 << 20  # of a form at most
FORM_FIELDS = 50
FORM = "application/x-www-form-urlencoded"


async def form_of(request: Request) -> Form:
    """Read the form of a request. Raises `Refused` if it is none, or too large."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Refused("This is no form.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES:
            raise Refused(f"The form has more than {FORM_BYTES:,} bytes.")
    try:
        pairs = parse_qsl(
            bytes(body).decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FORM_FIELDS
        )
    except ValueError as error:  # UnicodeDecodeError, too
        raise Refused("The form can't be read.") from error
    return Form(dict(pairs))


def place_of(address: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the page that an address below ours names, and its query, without an outcome."""
    parts = urlsplit(address)
    asked = parse_qsl(parts.query, keep_blank_values=True)
    return parts.path.strip("./"), tuple(sorted(pair for pair in asked if pair[0] != "outcome"))


def after(action: str, form: Form, outcome: str, onward: Mapping[str, str]) -> str:
    """Return the address of the page to go on with, relative to the actions'."""
    queue, job = form("queue"), form("id")
    if onward:
        return "../" + to("matching", name=queue, outcome=outcome, **onward)
    if form("state"):
        return "../" + to("queue", name=queue, state=form("state"), outcome=outcome)
    if action == "delete":
        return "../" + to("", outcome=outcome).removeprefix("./")
    if action in ("redrive", "purge_dead"):
        return "../" + to("dead", name=queue, outcome=outcome)
    if action in ("cancel", "expire", "reschedule") and job:
        return "../" + to("job" if action != "cancel" else "queue", queue=queue, name=queue, id=job, outcome=outcome)
    return "../" + to("queue", name=queue, outcome=outcome)
