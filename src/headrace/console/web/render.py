"""The templates, their filters, and addresses that are relative to all pages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from headrace.console.actions import TICKED_TEXTS
from headrace.console.texts import (
    clock,
    declared,
    from_now,
    in_words,
    memory,
    middle,
    percent,
    rate,
    spelled,
    timing,
    took,
)
from headrace.console.web.charts import HEIGHT, SMALL_HEIGHT, SMALL_WIDTH, WIDTH, bars, points
from headrace.platform import VERBS, cause_first, one_line

STATIC = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}


def to(page: str, /, **query: object) -> str:
    """Make the address of a page, relative to the others, so that it is right below any prefix."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{page or './'}?{urlencode(given, errors='surrogateescape')}" if given else page or "./"


@cache
def static_files() -> tuple[str, Mapping[str, bytes]]:
    """Read the static files, once in a process. Return their version, a hash of them all, and each
    by its name.
    """
    folder = files("headrace.console.web") / "static"
    found = {name: (folder / name).read_bytes() for name in STATIC}
    return sha256(b"\0".join(found.values())).hexdigest()[:16], found


@cache
def environment() -> Environment:
    """Make the templates' environment, once in a process, as it keeps compiled templates. They
    escape all values.
    """
    loader = PackageLoader("headrace.console.web", "templates")
    templates = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "span": spelled,
        "from_now": from_now,
        "clock": clock,
        "rate": rate,
        "bars": bars,
        "points": points,
    }
    filters |= {
        "timing": timing,
        "declared": declared,
        "line": one_line,
        "middle": middle,
        "took": took,
    }
    values: dict[str, Any] = {
        "to": to,
        "version": static_files()[0],
        "memory": memory,
        "in_words": in_words,
        "verbs": VERBS,
        "ticked_texts": TICKED_TEXTS,
        "small": (SMALL_WIDTH, SMALL_HEIGHT),
        "wide": WIDTH,
        "high": HEIGHT,
    }
    templates.filters.update(filters, percent=percent, cause=cause_first)
    templates.globals.update(values)
    return templates


def render(template: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    return HTMLResponse(environment().get_template(template).render(values), status)
