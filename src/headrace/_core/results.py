"""Calls for the results of jobs, or why there will be none. Generators of effects, like those of `calls`.

A call that waits subscribes first, then reads, so that nothing slips through. It believes no message: that may be about
an earlier job of the same id, or come from another database (Pub/Sub ignores database numbers). It reads again what a
message names, and only where nothing is left to read the message says how the job ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from headrace._core.calls import find
from headrace._core.effects import ForgetEnds, Step, await_ends, current_time, send, watch_ends
from headrace._model.event import ENDS, Event
from headrace._protocol.queue_ops import Ops

RESULTS_PER_SCRIPT = 99  # in one script: as many as may join the calls of others
NOTHING: Mapping[str, Event] = {}
_ENTRY_ID = re.compile(r"\d+-\d+(\.\d)?")


@frozen
class End:
    """The end of a job: `state` is one of `ENDS`, or `unknown`; *result* are the bytes that were kept, if any were."""

    state: str
    result: bytes | None = None
    reason: str | None = None


UNKNOWN = End("unknown")


def kept(ops: Ops, names: Sequence[str]) -> Step[dict[str, bytes]]:
    """Fetch the results of jobs that have one."""
    found: dict[str, bytes] = {}
    while names:
        some, names = names[:RESULTS_PER_SCRIPT], names[RESULTS_PER_SCRIPT:]
        answers = [*zip(some, (yield from send(ops.results(some))), strict=True)]
        found |= {name: result for name, result in answers if isinstance(result, bytes)}
        names = [*(name for name, result in answers if result is False), *names]
    return found


def look(
    ops: Ops, names: Sequence[str], told: Mapping[str, Event] = NOTHING, *, own: bool = False
) -> Step[dict[str, End]]:
    """Read what became of jobs. Those that have not ended are not in the answer; those of which nothing is known have
    the end that was *told* of, or are `UNKNOWN`.

    *own*: results that jobs of their ids left earlier do not count while these are there.
    """
    named = [name for name in names if own and not _ENTRY_ID.fullmatch(name)]
    alive = yield from _sought(ops, named)
    found = yield from kept(ops, [name for name in names if alive.get(name, UNKNOWN) is not None])
    ends = {name: End("completed", result) for name, result in found.items()}
    sought = yield from _sought(ops, [name for name in names if name not in ends and name not in alive])
    ended = {name: end for name, end in (alive | sought).items() if name not in ends and end is not None}
    late = yield from kept(ops, [name for name, end in ended.items() if end is UNKNOWN])  # it came in between
    for name, end in ended.items():
        event = told.get(name)
        if name in late:
            ends[name] = End("completed", late[name])
        elif end is UNKNOWN and event is not None:
            ends[name] = End(event.kind, None, event.reason)
        else:
            ends[name] = end
    return ends


def _sought(ops: Ops, names: Iterable[str]) -> Step[dict[str, End | None]]:
    """Find jobs: `None` for one that has not ended."""
    sought: dict[str, End | None] = {}
    for name in names:
        state = yield from find(ops, name)
        if state is None:
            sought[name] = UNKNOWN
        else:
            sought[name] = End(state.state, None, state.reason) if state.state in ENDS else None
    return sought


def end_of(ops: Ops, name: str, timeout: float, *, own: bool) -> Step[End]:
    """Wait for the end of a job, *timeout* seconds at most. Raises `TimeoutError`.

    *own*: it was enqueued before, so that one of which nothing is known has ended; else it may come.
    """
    start = yield from current_time()
    end = (yield from look(ops, [name], own=own)).get(name)
    if timeout and (end is None or (end is UNKNOWN and not own)):
        waiter = yield from watch_ends([name], timeout)
        told, again = NOTHING, True  # what came between
        try:
            while True:
                if again or told:
                    end = (yield from look(ops, [name], told, own=own)).get(name)
                rest = start + timeout - (yield from current_time())
                if rest <= 0 or (end is not None and (own or end is not UNKNOWN)):
                    break
                told, again = yield from await_ends(waiter, rest)
        finally:
            yield ForgetEnds(waiter)
    if end is None:
        raise TimeoutError(f"job {name!r} has not ended within {timeout:g} s; it goes on")
    return end


def results(ops: Ops, names: Iterable[str], timeout: float | None) -> Step[dict[str, bytes]]:
    """Fetch kept results; wait up to *timeout* seconds for those that are missing and may still come."""
    start = yield from current_time()
    left = list(dict.fromkeys(names))
    found = yield from kept(ops, left)
    left = [name for name in left if name not in found]
    if not left or not timeout:
        return found
    waiter = yield from watch_ends(left, timeout)
    try:
        told, again = NOTHING, True  # what came between
        while True:
            found |= yield from kept(ops, left if again else [name for name in left if name in told])
            gone = yield from look(ops, [name for name in left if name in told and name not in found])
            found |= {name: end.result for name, end in gone.items() if end.result is not None}
            left = [name for name in left if name not in found and name not in gone]
            rest = start + timeout - (yield from current_time())
            if not left or rest <= 0:
                return found
            told, again = yield from await_ends(waiter, rest)
    finally:
        yield ForgetEnds(waiter)
