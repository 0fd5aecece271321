"""The output of commands as tables on a terminal, as fields between tabs elsewhere, or as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import attrs

from headrace import JobState
from headrace.console.cli.console import FAILED, LAYOUT, say
from headrace.console.texts import clock as in_utc, from_now, took
from headrace.errors import HeadraceError
from headrace.platform import HEADERS, cause_first, visible

T = TypeVar("T")
Fields = Iterable[tuple[str, object]]  # names and values
CUT = ("reason", "payload", "result")  # columns that give way where a line is too long


def print_out(text: str) -> None:
    """Write lines of a result. All texts go to standard output through this function, except for
    full payloads."""
    sys.stdout.write(f"{visible(text, keep=LAYOUT)}\n")


def print_json(value: object) -> None:
    print_out(json_of(value))


def json_of(value: object, indent: int | None = None) -> str:
    """Return a value as JSON. Characters that do not print, or that the output can't encode, are
    escaped."""
    text = json.dumps(
        value, ensure_ascii=not sys.stdout.encoding.lower().startswith("utf"), indent=indent
    )
    if text.isprintable():
        return text
    return "".join(c if c in LAYOUT or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def outcome(as_json: bool, text: str, value: Mapping[str, object]) -> None:
    if as_json:
        print_json(value)
    else:
        print_out(text)


def succeed(done: object) -> None:
    if not done:
        sys.stdout.flush()
        raise SystemExit(FAILED)


def missing(number: int, wanted: int, why: str) -> None:
    if number > 0:
        sys.stdout.flush()
        raise HeadraceError(f"{number} of {wanted}: {why}")


def all_of(number: int, ids: Sequence[str] | None, why: str) -> None:
    """End with exit code 1 if nothing was done, or less than was asked for."""
    if ids:
        wanted = len(set(ids))
        missing(wanted - number, wanted, why)
    succeed(number)


def changed(
    queue: str,
    word: str,
    number: int,
    in_json: bool,
    ids: Sequence[str] | None = None,
    why: str = "",
) -> None:
    outcome(in_json, f"{word} {number}", {"queue": queue, word: number})
    all_of(number, ids, why)


def bounded(items: Iterable[T], limit: int | None) -> Iterator[T]:
    """Yield the first *limit* of *items*, by default a screenful on a terminal. Report if there are
    more.
    """
    most = limit or (100 if sys.stdout.isatty() else None)  # rows
    left = iter(items)
    yield from islice(left, most)
    if limit is None and most is not None and next(left, None) is not None:
        say(f"the first {most}; --limit N shows more")


def show(
    columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()
) -> None:
    if not sys.stdout.isatty():
        print_out("\t".join(column.replace(" ", "_") for column in columns))
        for row in rows:
            print_out("\t".join(plain(str(cell)) for cell in row))
        return
    # here: it takes as long as a short command, which most print no table of
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    texts = [[plain(str(cell)) for cell in row] for row in rows]
    for row in texts if "reason" in columns else ():
        row[columns.index("reason")] = cause_first(row[columns.index("reason")])
    kept = [i for i in range(len(columns)) if not texts or any(row[i] for row in texts)]
    console = Console(highlight=False)
    gap = 2  # cells between columns
    widths = {
        i: max(cell_len(columns[i]), *(cell_len(row[i]) for row in texts)) if texts else 0
        for i in kept
    }
    room = console.width - sum(width + gap for i, width in widths.items() if columns[i] not in CUT)
    cut = sorted((i for i in kept if columns[i] in CUT), key=lambda i: widths[i])
    for number, i in enumerate(cut):
        widths[i] = min(widths[i], max(12, room // (len(cut) - number) - gap))
        room -= widths[i] + gap
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    for i in kept:
        table.add_column(
            columns[i], justify="right" if columns[i] in right else "left", overflow="fold"
        )
    for row in texts:
        # as text, no markup
        table.add_row(*(Text(_fit(row[i], widths[i]) if i in cut else row[i]) for i in kept))
    console.print(table)


def _fit(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def show_values(
    values: Iterable[Any],
    as_json: bool,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Sequence[str] = (),
) -> None:
    """Print values of an attrs class as lines of JSON, or *rows*, which are made of them, as a
    table.
    """
    if not as_json:
        show(columns, rows, right)
        return
    for value in values:
        print_json(attrs.asdict(value))


def show_each(
    found: Iterable[T], in_json: bool, value: Callable[[T], object], fields: Callable[[T], Fields]
) -> None:
    for number, one in enumerate(found):
        if in_json:
            print_json(value(one))
            continue
        if number:
            print_out("")
        show_fields(fields(one))


def show_fields(rows: Fields) -> None:
    texts = [(plain(name), plain(str(value))) for name, value in rows if value not in (None, "")]
    width = max((len(name) for name, _ in texts), default=0)
    for name, value in texts:
        print_out(f"{name:<{width}}  {value}" if sys.stdout.isatty() else f"{name}\t{value}")


# -- texts -----------------------------------------------------------------------------------------


def plain(text: str) -> str:
    return visible(text)


def clock(moment: float | None) -> str:
    return in_utc(moment) if moment else ""


def when(moment: float | None) -> str:
    return from_now(moment or None, time.time())


def start_of(data: bytes, most: int = 200) -> str:
    return plain(data[:most].decode("utf-8", "backslashreplace")) + (
        "…" if len(data) > most else ""
    )


def bytes_of(value: object) -> bytes:
    if value is None:
        return b""
    return value if isinstance(value, bytes) else str(value).encode()


def as_json(name: str, data: bytes) -> dict[str, str]:
    """Make the member of an object that holds *data*. Its value is text if it is UTF-8, else
    hexadecimal under another name.
    """
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_hex": data.hex()}


# -- jobs ------------------------------------------------------------------------------------------

JOB_COLUMNS = ("id", "state", "attempt", "enqueued", "since", "due", "worker", "reason", "payload")
SHORT_COLUMNS = ("id", "state", "kind", "attempt", "when", "took", "reason", "payload")


def job_as_json(state: JobState) -> dict[str, Any]:
    job = state.job
    return {
        "id": job.id,
        "queue": job.queue,
        "state": state.state,
        **as_json("payload", bytes_of(job.payload)),
        "headers": dict(job.headers),
        "attempt": job.attempt,
        "priority": job.priority,
        "enqueued_at": state.enqueued_at,
        "since": state.since,
        "due": state.due,
        "worker": state.worker,
        "reason": state.reason,
        "traceback": state.traceback,
        "attempts": [attrs.asdict(one) for one in state.attempts],
        "children": None if state.children is None else attrs.asdict(state.children),
    }


def show_jobs(
    states: Iterable[JobState], json_lines: bool, columns: Sequence[str] = JOB_COLUMNS
) -> None:
    if json_lines:
        for state in states:
            print_json(job_as_json(state))
        return
    shown = SHORT_COLUMNS if sys.stdout.isatty() else columns
    rows = map(_cells, states)
    show(shown, ([row[column] for column in shown] for row in rows), right=("attempt",))


def _cells(state: JobState) -> dict[str, object]:
    job = state.job
    return {
        "id": plain(job.id),
        "state": state.state,
        "kind": plain(job.headers.get(HEADERS.kind, "")),
        "attempt": job.attempt,
        "took": "" if state.took is None else took(state.took),
        "when": when(state.due or state.since or state.enqueued_at),
        "enqueued": clock(state.enqueued_at),
        "since": clock(state.since),
        "due": clock(state.due),
        "worker": plain(state.worker or ""),
        "reason": "" if state.overcome else plain(state.reason or ""),
        "payload": start_of(bytes_of(job.payload)),
    }
