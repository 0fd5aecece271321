"""Operations that only look, for `headrace.inspect`. Pure, like `queue_ops`."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from headrace._model.state import JobState
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Jobs, text
from headrace._protocol.script import script


@frozen
class About:
    """State of a queue as a whole; `now` in seconds of the server's clock."""

    now: float
    paused: bool
    levels: int
    declaration: int
    declared: dict[str, str]


@frozen
class Holding:
    """The lease of an entry as the server knows it: `until` in seconds, `None` if that is not known."""

    worker: str
    count: int
    until: float | None


def _op(ops: Ops, name: str, args: list[Any], decode: Any) -> Op[Any]:
    source = script(name)
    return Op(name, source, [ops.keys.part(part) for part in source.parts], args, decode)


def about(ops: Ops) -> Op[About]:
    """Ask what is known of the queue as a whole."""

    def decode(reply: Any) -> About:
        now, paused, levels, declaration, *words = reply
        said = list(map(text, words))
        return About(now / 1000, paused == 1, levels + 1, declaration, dict(zip(said[::2], said[1::2], strict=False)))

    return _op(ops, "about", [], decode)


def lease_of(ops: Ops, entry: str) -> Op[Holding | None]:
    """Ask under which delivery an entry is leased, and until when; `None`: it is not leased."""

    def decode(reply: Any) -> Holding | None:
        return Holding(text(reply[0]), reply[1], reply[2] / 1000 if reply[2] else None) if reply else None

    return _op(ops, "lease_of", [entry], decode)


def seek(ops: Ops, name: str, cursor: str) -> Op[tuple[JobState[Any] | None, int, str]]:
    """Like `Ops.seek`, with the token of the job's delivery between."""
    jobs = Jobs(ops.keys.queue, ops.codec)

    def decode(reply: Any) -> tuple[JobState[Any] | None, int, str]:
        now, row, more = reply
        if not row:
            return None, 0, text(more)
        token = jobs.job(row[0], row[1], row[3], row[4])[1] if text(row[2]) == "leased" else 0
        return jobs.state(row, now), token, text(more)

    op: Op[Any] = ops.seek(name, cursor)
    return evolve(op, decode=decode)


def page(ops: Ops, state: str, cursor: str, limit: int) -> Op[tuple[list[JobState[Any]], str, float]]:
    """Like `Ops.listing`: a page, where to go on, and the time in seconds of the server's clock."""
    jobs = Jobs(ops.keys.queue, ops.codec)

    def decode(reply: Any) -> tuple[list[JobState[Any]], str, float]:
        more, now, rows = reply
        return [jobs.state(row, now) for row in rows], text(more), now / 1000

    op: Op[Any] = ops.listing(state, cursor, limit)
    return evolve(op, decode=decode)
