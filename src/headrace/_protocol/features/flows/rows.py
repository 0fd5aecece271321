"""Flows as scripts reply them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, cast

from headrace._model.flow import FlowState
from headrace._model.state import Children, Place
from headrace._protocol.replies import Verdicts, bools, decoded_number, died, pairs, raw, text
from headrace.errors import ReplyError

# the other states have one name
_POSITIONS = {"active": "running", "done": "completed", "dead": "failed"}


def advanced(flow: str) -> Callable[[Any], Verdicts]:
    def decode(reply: Any) -> Verdicts:
        at = next((i for i, one in enumerate(reply) if isinstance(one, list)), len(reply))
        made = Verdicts(bools(reply[:at]))
        made.orphans = [pair for words in reply[at + 1 :] for pair in pairs(words)]
        made.letters = {
            -n: (f"{flow}/{text(stage)}", died(letter))
            for letters in reply[at : at + 1]
            for n, (stage, *letter) in enumerate(letters, 1)
        }
        return made

    return decode


def children_of(kept: str) -> Children | None:
    counts, *rows = kept.split("\x1e")
    if not re.fullmatch(r"\d+ \d+ \d+", counts):
        return None
    parts = [row.split("\x1f") for row in rows]
    places = tuple(
        Place(one[0], one[1], _POSITIONS.get(one[2], one[2])) for one in parts if len(one) == 3
    )
    completed, failed, cancelled = map(int, counts.split())
    return Children(completed, failed, cancelled, places)


def flow_rows(reply: Any, begun: Any) -> tuple[list[Any], Any]:
    """Split the answer of `flow_read` into complete rows and the incomplete row, if any.

    *begun*: the incomplete row of the previous call.
    """
    rows = [*reply]
    # else the job is gone, or has other children by now
    if begun is not None and len(rows[0]) > 2 and rows[0][10]:
        head = begun
        more = rows[0]
        rows[0] = [*head[:7], [*head[7], *more[7]], [*head[8], *more[8]], *more[9:]]
    return rows, rows.pop() if flow_cursor(rows[-1]) else None


def flow_cursor(row: Any) -> bytes:
    return raw(row[9]) if row is not None and len(row) > 2 else b""


def flow_state(name: str, row: Any, strict: bool = False) -> FlowState | None:
    """Decode the state of one job of a flow. Returns `None` if there is no such job.

    With *strict*, raises `ReplyError` if another program wrote the key of its run.
    """
    if len(row) == 2 and strict:
        raise ReplyError(
            f"job {name!r}: its run's key {text(row[1])} is not headrace's: remove it, or rename it"
        )
    if len(row) < 3:
        return None
    position, stage, _, started, ended, attributes, left, kept, children = row[:9]
    pending = decoded_number(left)
    results = {text(s): raw(r) for s, r in zip(kept[::2], kept[1::2], strict=True)}
    how = text(position)
    failed: tuple[str, ...] = ("dead", "cancelled")
    # a child that still runs was redriven after its parent stopped waiting: it counts as failed
    if not pending:
        failed += ("active", "blocked")
    ends = (text(at).partition(" ")[0] for at in children[1::4])
    kept_results = zip(children[2::4], children[3::4], strict=True)
    ended_in = list(zip(map(text, children[::4]), ends, kept_results, strict=True))
    return FlowState(
        name,
        _POSITIONS.get(how, how),
        text(stage),
        _attributes(attributes),
        results,
        {
            child: raw(result) if there else None
            for child, end, (there, result) in ended_in
            if end == "done"
        },
        tuple(child for child, end, _ in ended_in if end in failed),
        pending,
        _moment(started),
        _moment(ended),
        (text(row[13]) or None) if len(row) > 13 else None,
    )


def passing(
    name: str, row: Any
) -> tuple[list[float | None], list[tuple[str, str, str, float | None]]]:
    """Decode the times of a row of `flow_read`, and the id, state, stage and end of each child."""
    children: list[tuple[str, str, str, float | None]] = []
    for child, at in zip(row[8][::4], row[8][1::4], strict=True):
        how, stage, left, *_ = [*text(at).split(" "), "", "", ""]
        children.append(
            (
                f"{name}/{text(row[11])}/{text(child)}",
                _POSITIONS.get(how, how),
                stage,
                _moment(left),
            )
        )
    return [_moment(one) for one in row[12]], children


def _moment(ms: Any) -> float | None:
    return decoded_number(ms) / 1000 if ms else None


def _attributes(kept: Any) -> dict[str, str | list[str]]:
    try:
        found: Any = json.loads(raw(kept) or b"{}")
    except (ValueError, RecursionError):  # foreign bytes
        return {}
    return cast("dict[str, str | list[str]]", found) if isinstance(found, dict) else {}
