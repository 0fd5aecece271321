"""The commands of `headrace dead` for dead letters."""

from __future__ import annotations

from typing import Annotated, Any

import redis
import typer

from headrace import Queue
from headrace.console.cli.change import all_matching, is_bulk
from headrace.console.cli.console import bytes_of, open_queue, path_of, require
from headrace.console.cli.options import (
    Ids,
    Json,
    Jsonl,
    Kind,
    Limit,
    Name,
    Reason,
    Yes,
    confirm,
    on_queue,
    on_server,
    verbs,
)
from headrace.console.cli.output import bounded, changed, clock, show_jobs, show_values
from headrace.errors import ConfigurationError
from headrace.inspect import Inspector
from headrace.platform import HEADERS

LETTER_COLUMNS = ("id", "attempt", "since", "worker", "reason", "payload")
GROUP_COLUMNS = ("number", "last hour", "last day", "newest", "kind", "reason")

group = verbs("List dead letters, send them back, remove them.")


@group.command("list")
@on_server
def list_letters(
    client: redis.Redis,
    namespace: str,
    name: Name,
    reason: Annotated[
        str, typer.Option(show_default=False, help="Only with this text in the reason.")
    ] = "",
    kind: Annotated[str, typer.Option(show_default=False, help="Only of this kind.")] = "",
    groups: Annotated[
        bool,
        typer.Option(
            "--groups", help="By reason and kind, with the last hour and day: the newest 2,000."
        ),
    ] = False,
    limit: Limit = None,
    in_json: Jsonl = False,
) -> None:
    """List dead letters, oldest first, or groups of them, newest first."""
    if groups:
        require(client, name, namespace)
        with Inspector(client=client, namespace=namespace) as inspector:
            found = [
                one
                for one in inspector.dead(name).groups
                if reason in one.reason and kind in ("", one.kind)
            ]
        shown = [*bounded(found, limit)]
        rows = [
            (one.number, one.hour, one.day, clock(one.last), one.kind or "", one.reason)
            for one in shown
        ]
        show_values(shown, in_json, GROUP_COLUMNS, rows, right=GROUP_COLUMNS[:3])
        return
    with open_queue(client, name, namespace) as queue:
        dead = (one for one in queue.admin.dead() if reason in (one.reason or ""))
        some = (one for one in dead if kind in ("", one.job.headers.get(HEADERS.kind, "")))
        show_jobs(bounded(some, limit), in_json, LETTER_COLUMNS)


@group.command()
@on_queue
def redrive(
    queue: Queue,
    ids: Ids = None,
    reason: Reason = "",
    kind: Kind = "",
    from_step: Annotated[
        str | None,
        typer.Option(show_default=False, help="Of one job: forget this step, and all after it."),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT|@FILE", help="Of one job: replace its payload, by a text or a file."
        ),
    ] = None,
    in_json: Json = False,
) -> None:
    """Send dead letters back to the queue, all or some.

    One whose id is taken again stays. If it is interrupted, the next call goes on. A job that took
    steps goes on behind them.
    """
    for option, given in (("--from-step", from_step), ("--payload", payload)):
        if given is not None and (reason or kind or len(ids or ()) != 1):
            raise ConfigurationError(f"{option}: give the id of one job")
    if is_bulk(ids, reason, kind):
        all_matching(queue, "redrive", "dead", reason, kind, "redriven", in_json)
        return
    data: Any = ... if payload is None else contents(payload)
    number = queue.admin.redrive(*ids or (), from_step=from_step, payload=data)
    changed(
        queue.name,
        "redriven",
        number,
        in_json,
        ids,
        "no such dead letter, or its id is taken again",
    )


def contents(text: str) -> bytes:
    """Return the bytes of a text, or of a file if it begins with @. Raises `ConfigurationError`."""
    if not text.startswith("@"):
        return bytes_of(text)
    try:
        return path_of(text[1:]).read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--payload {text}: {error}") from None


@group.command()
@on_queue
def purge(
    queue: Queue,
    ids: Ids = None,
    reason: Reason = "",
    kind: Kind = "",
    yes: Yes = False,
    in_json: Json = False,
) -> None:
    """Remove dead letters for good, all or some."""
    if is_bulk(ids, reason, kind):
        confirm(f"Remove all dead letters of {queue.name} that match for good?", yes)
        all_matching(queue, "purge_dead", "dead", reason, kind, "purged", in_json)
        return
    if not ids:
        confirm(f"Remove all {queue.counts().dead} dead letters of {queue.name} for good?", yes)
    changed(
        queue.name,
        "purged",
        queue.admin.purge_dead(*ids or ()),
        in_json,
        ids,
        "no such dead letter",
    )
