"""The operations by which programs and operators change jobs from outside, and the queue as a
whole."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from headrace._model import checks
from headrace._model.checks import millis
from headrace._model.codec import binds, keeper, of_job
from headrace._model.job import Job
from headrace._model.state import Repairs
from headrace._protocol import replies
from headrace._protocol.keys import wire_id, worker_name
from headrace._protocol.limits import CLAIMS_PER_SCRIPT, LOOKS_PER_SCRIPT, REWRITES_PER_SCRIPT
from headrace._protocol.op import Arg, Op
from headrace._protocol.queue_ops import Delay, Ops, given
from headrace._protocol.replies import text
from headrace.errors import CodecError, ConfigurationError

MOVED_TO = (
    "wake",
    "jobs",
    "ids",
    "released",
    "delayed",
    "bodies",
    "stats",
    "events",
    "steps",
    "cancels",
)
"""The keys of the other queue that `move` takes, before the streams of levels."""


def payload_of(ops: Ops, id: str, payload: Any) -> bytes:
    data = ops.encoded(payload, of_job(ops.bound, given(id)))
    checks.check_size("payload", [data])
    return data


def ticket(ops: Ops, job: Job[bytes]) -> str | None:
    """Return the name under which the codec keeps the payload of an undecoded job. Returns `None`
    if it can't be read.
    """
    kept = keeper(of_job(ops.bound, job.id))
    with suppress(CodecError):
        return None if kept is None else kept.ticket(job.payload)
    return None


class Cancelled(NamedTuple):
    number: int  # of jobs
    children: list[tuple[str, str]]  # their open ones: the prefix of the queue's keys, and the id


def _cancelled(reply: Any) -> Cancelled:
    number, *words = [reply] if isinstance(reply, int) else reply
    return Cancelled(int(number), replies.pairs(words))


def _cancelled_page(reply: Any) -> tuple[Cancelled, str, str]:
    number, place, cursor, *words = reply
    return _cancelled([number, *words]), text(place), text(cursor)


def cancel(ops: Ops, name: str) -> Op[bool]:
    return ops.op("cancel", [wire_id(name), millis(ops.settings.result_ttl)], bool)


def cancel_run(ops: Ops, name: str) -> Op[Cancelled]:
    """Cancel a job, and learn of its open children."""
    return ops.op("cancel", [wire_id(name), millis(ops.settings.result_ttl)], _cancelled)


def cancel_payload(
    ops: Ops, payload: bytes, place: str, cursor: str
) -> Op[tuple[Cancelled, str, str]]:
    checks.check_size("payload", [payload])
    args: list[Arg] = [payload, place, cursor, LOOKS_PER_SCRIPT, millis(ops.settings.result_ttl)]
    return ops.op("cancel_payload", args, _cancelled_page)


def purge(ops: Ops, cursor: str = "-", wanted: Sequence[Arg] = ()) -> Op[tuple[int, str]]:
    return ops.op("purge", [cursor, 2 * REWRITES_PER_SCRIPT, *wanted], replies.moved)


def purge_dead(ops: Ops, cursor: str, wanted: Sequence[str]) -> Op[tuple[int, str]]:
    return ops.op("purge_dead", [cursor, LOOKS_PER_SCRIPT, *map(wire_id, wanted)], replies.moved)


def delete(ops: Ops) -> Op[tuple[int, str]]:
    """Remove everything, or a page of the jobs of flows. '1' in the answer asks for another
    call."""
    return ops.op("delete", [], replies.moved)


def redrive(
    ops: Ops,
    cursor: str,
    wanted: Sequence[str],
    from_step: str = "",
    payload: bytes | None = None,
    ticket: str | None = None,
) -> Op[tuple[int, str]]:
    """Send a page of dead letters back to the queue, or the *wanted* ones. With *from_step*, the
    single wanted run does that step, and all after it, again. *payload* replaces the payload of the
    single wanted job. *ticket* is the ticket of its old payload.
    """
    mended = b"" if payload is None else b"=" + payload
    args: list[Arg] = [cursor, REWRITES_PER_SCRIPT, from_step, mended, *map(wire_id, wanted)]
    return ops.op("redrive", args, replies.redriven(from_step, ops.codec, ticket))


def pause(ops: Ops, pause: bool) -> Op[bool]:
    """Pause or resume the queue. The answer is false if it was in that state already."""
    return ops.op("pause", [int(pause)], bool)


def paused(ops: Ops) -> Op[bool]:
    return ops.op("paused", [], bool)


def expire(ops: Ops, cursor: str, wanted: Sequence[str]) -> Op[tuple[int, str]]:
    return ops.op("expire", [cursor, CLAIMS_PER_SCRIPT, *map(wire_id, wanted)], replies.moved)


def fail_worker(ops: Ops, name: str) -> Op[tuple[int, str]]:
    """Declare a worker dead. '1' in the answer asks for another call."""
    return ops.op("fail_worker", [worker_name(name), CLAIMS_PER_SCRIPT], replies.moved)


def move(ops: Ops, to: str, cursor: str, wanted: Sequence[str]) -> Op[tuple[int, str]]:
    target = ops.target(to)
    if target == ops.keys:
        raise ConfigurationError(f"to={to!r} is this queue itself")
    if binds(ops.codec):
        raise ConfigurationError(
            f"to={to!r}: {ops.codec!r:.200} binds payloads to their queue, and no other can open them: lease the "
            "jobs here and enqueue their payloads there"
        )
    keys = [target.key(key) for key in MOVED_TO]
    levels = [
        level for keys in (ops.keys, target) for level in keys.levels(ops.settings.priorities)
    ]
    return ops.op(
        "move",
        [cursor, REWRITES_PER_SCRIPT, *map(wire_id, wanted)],
        replies.moved,
        [*keys, *levels],
    )


def repair(
    ops: Ops, place: str = "jobs", cursor: str = "-", *, dry: bool = False
) -> Op[tuple[Repairs, str, str]]:
    """Repair damage by foreign commands, a page at a time. With *dry*, only count it."""
    args: list[Arg] = [place, cursor, LOOKS_PER_SCRIPT, millis(ops.settings.lease), int(dry)]
    return ops.op("repair", args, replies.repairs)


def reschedule(ops: Ops, name: str, delay: Delay) -> Op[bool]:
    return ops.op("reschedule", [wire_id(name), checks.delay(delay)], bool)
