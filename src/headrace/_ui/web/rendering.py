"""Templates, and how they write times, numbers and small charts. Everything is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from headrace._model.verbs import VERBS
from headrace._model.views import one_line
from headrace._ui.texts import clock, from_now, rate, span

CHART_WIDTH, CHART_HEIGHT = 120, 24


def points(trail: Sequence[tuple[float, float]], which: int) -> str:
    """Draw one of the two lines of a trail: the points of a polyline, the newest at the right."""
    top = max((max(pair) for pair in trail), default=0.0) or 1.0
    step = CHART_WIDTH / max(1, len(trail) - 1)
    return " ".join(
        f"{i * step:.1f},{CHART_HEIGHT - 1 - pair[which] / top * (CHART_HEIGHT - 2):.1f}"
        for i, pair in enumerate(trail)
    )


def to(page: str, **query: object) -> str:
    """Make the address of a page, relative to the others: so it is right below any prefix."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{page or './'}?{urlencode(given, errors='surrogateescape')}" if given else page or "./"


@cache
def environment() -> Environment:
    """Make the templates' environment, once in a process: it keeps its compiled templates."""
    loader = PackageLoader("headrace._ui.web", "templates")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    filters: dict[str, Any] = {"span": span, "from_now": from_now, "clock": clock, "rate": rate, "points": points}
    values: dict[str, Any] = {"to": to, "verbs": VERBS, "chart": (CHART_WIDTH, CHART_HEIGHT)}
    made.filters.update(filters, line=one_line)
    made.globals.update(values)
    return made


def page(templates: Environment, name: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    """Render a page."""
    return HTMLResponse(templates.get_template(name).render(values), status)
