"""The records of runs as scripts reply them."""

from __future__ import annotations

from typing import Any

from headrace._model.steps import Progress, Record
from headrace._protocol.replies import raw, text


class Records(list[Record]):
    """The records of a run, in their order, with the build of the worker that began it."""

    build: str = ""


def records(rows: Any) -> Records:
    found = Records(_record(number, *row) for number, row in enumerate(rows, 1) if len(row) > 1)
    if rows and len(rows[-1]) == 1:
        found.build = text(rows[-1][0])
    return found


def _record(
    number: int,
    name: Any,
    kind: Any,
    began: int,
    ended: int,
    attempt: int,
    value: Any,
    due: int,
    traced: Any = b"",
    _place: int | None = None,
    by: Any = b"",
    sent: int = 0,
    omitted: int = 0,
    outcome: Any = b"",
    home: Any = b"",
    child: Any = b"",
    depth: int = 0,
) -> Record:
    kept = None if value is None else raw(value)
    known = (text(name), text(kind), began, ended, attempt, kept, due, text(traced))
    more = (text(outcome), text(home), text(child), depth)
    return Record(number, *known, text(by), sent, omitted, *more)


def progress_of(kept: Any) -> Progress | None:
    at, _, rest = ("" if kept is None else text(kept)).partition(" ")
    fraction, _, words = rest.partition(" ")
    try:
        return Progress(float(fraction), words, int(at) / 1000)
    except ValueError:
        return None
