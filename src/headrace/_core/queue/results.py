"""Calls for the results of jobs, or why there will be none. They are generators of effects, like
`calls`.

A call that waits first subscribes, then reads, so that it misses no end. It does not trust
messages, because a message may be about an earlier job of the same id, or come from another
database (Pub/Sub ignores database numbers). It reads the job that a message names, and trusts the
message only if nothing of the job is left to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from headrace._core.effects import AwaitEnds, Call, ForgetEnds, Now, WatchEnds, send
from headrace._core.queue.calls import find
from headrace._model.event import Event
from headrace._model.shards import is_entry
from headrace._protocol.features import results as result_ops
from headrace._protocol.features.history import Ended
from headrace._protocol.limits import COALESCED_BELOW
from headrace._protocol.queue_ops import Ops

RESULTS_PER_SCRIPT = COALESCED_BELOW - 1  # as many as may join the calls of others
NOTICE_WITHIN_S = 1.0  # seconds within which a message about a job that has just ended arrives
NOTHING: Mapping[str, Event] = {}


@frozen
class End:
    state: str  # one of `ENDS`, `expired` (completed, but its result is gone), or `unknown`
    result: bytes | None = None  # as it is kept
    reason: str | None = None


UNKNOWN = End("unknown")
EXPIRED = End("expired", None, "its result was kept no longer than result_ttl")


def kept(ops: Ops, names: Sequence[str]) -> Call[dict[str, bytes]]:
    found: dict[str, bytes] = {}
    while names:
        some = names[:RESULTS_PER_SCRIPT]
        names = names[RESULTS_PER_SCRIPT:]
        answers = [*zip(some, (yield from send(result_ops.results(ops, some))), strict=True)]
        found |= {name: result for name, result in answers if isinstance(result, bytes)}
        names = [*(name for name, result in answers if result is False), *names]
    return found


def ended(ops: Ops, names: Sequence[str]) -> Call[dict[str, Ended]]:
    """Return the known ends of jobs. Jobs that have not ended are not in the answer."""
    found: dict[str, Ended] = {}
    while names:
        some = names[:RESULTS_PER_SCRIPT]
        names = names[RESULTS_PER_SCRIPT:]
        answers = [*zip(some, (yield from send(result_ops.ended(ops, some))), strict=True)]
        found |= {name: one for name, one in answers if one.state not in ("there", "again")}
        names = [*(name for name, one in answers if one.state == "again"), *names]
    return found


def read_ends(
    ops: Ops, names: Sequence[str], notified: Mapping[str, Event] = NOTHING, *, own: bool = False
) -> Call[dict[str, End]]:
    """Read how jobs ended. The answer leaves out jobs that have not ended. For an unknown job it
    has the end that was *notified*, or `UNKNOWN`.

    *own*: the jobs were enqueued before. While such a job exists, a result of an earlier job with
    its id does not count. (A history also tells whose result it is.)
    """
    first = [name for name in names if not ops.settings.history and (not own or is_entry(name))]
    found = yield from kept(ops, first)
    gone = yield from ended(ops, [name for name in names if name not in found])
    maybe = [name for name, one in gone.items() if one.with_result or one.state.startswith("gone")]
    found |= yield from kept(ops, maybe)  # it may have come in between
    ends = {name: End("completed", result) for name, result in found.items()}
    for name, one in gone.items():
        if name in found:
            continue
        if one.state.startswith("gone"):
            ends[name] = yield from _end_without_traces(ops, name, one, notified.get(name))
        else:
            ends[name] = EXPIRED if one.with_result else End(one.state, None, one.reason)
    return ends


def _end_without_traces(ops: Ops, name: str, one: Ended, event: Event | None) -> Call[End]:
    if event is not None and event.kind != "dead":
        return End(event.kind)
    state = (yield from find(ops, name)) if one.state != "gone" else None
    if state is not None and state.state == "dead":
        return End("dead", None, state.reason)
    return UNKNOWN if event is None else End(event.kind, None, event.reason)


def end_of(ops: Ops, name: str, timeout: float, *, own: bool) -> Call[End]:
    """Wait for the end of a job, *timeout* seconds at most.

    Raises `TimeoutError`. *own*: the job was enqueued before, so if nothing is known of it, it has
    ended. Otherwise it may still come.
    """
    start = yield from Now()
    end = (yield from read_ends(ops, [name], own=own)).get(name)
    doubtful = end is None  # the job existed: its end is reported a little later
    if timeout and (end is None or (end is UNKNOWN and not own)):
        waiter = yield from WatchEnds([name], timeout)
        notified = NOTHING  # messages may have come meanwhile
        again = True
        try:
            while True:
                if again or notified:
                    end = (yield from read_ends(ops, [name], notified, own=own)).get(name)
                rest = start + timeout - (yield from Now())
                if rest <= 0 or (end is not None and (own or end is not UNKNOWN)):
                    break
                notified, again = yield from AwaitEnds(waiter, rest)
            if end is UNKNOWN and own and doubtful:
                notified, _ = yield from AwaitEnds(waiter, min(max(rest, 0.0), NOTICE_WITHIN_S))
                end = (yield from read_ends(ops, [name], notified, own=own)).get(name, end)
        finally:
            yield ForgetEnds(waiter)
    if end is None:
        raise not_ended(name, timeout)
    return end


def not_ended(name: str, timeout: float) -> TimeoutError:
    waited = f" within {timeout:g} s" if timeout else ""
    return TimeoutError(f"job {name!r} has not ended{waited}; it goes on")


def results(ops: Ops, names: Iterable[str], timeout: float) -> Call[dict[str, bytes]]:
    """Fetch kept results. Wait up to *timeout* seconds for missing results that may still come."""
    start = yield from Now()
    left = list(dict.fromkeys(names))
    found = yield from kept(ops, left)
    left = [name for name in left if name not in found]
    if left and timeout:  # no result will come of a job that was cancelled
        over = yield from ended(ops, left)
        left = [name for name in left if name not in over or over[name].state != "cancelled"]
    if not left or not timeout:
        return found
    waiter = yield from WatchEnds(left, timeout)
    try:
        notified = NOTHING  # messages may have come meanwhile
        again = True
        while True:
            ends = yield from read_ends(ops, [name for name in left if name in notified], notified)
            found |= {name: end.result for name, end in ends.items() if end.result is not None}
            found |= yield from kept(ops, [name for name in left if again and name not in notified])
            left = [name for name in left if name not in found and name not in ends]
            rest = start + timeout - (yield from Now())
            if not left or rest <= 0:
                return found
            notified, again = yield from AwaitEnds(waiter, rest)
    finally:
        yield ForgetEnds(waiter)
