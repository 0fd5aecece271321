"""The children of a run are jobs that it starts, and may wait for.

The start of a child is a record of its parent, made in the script that enqueues the child. The end
of the child completes that record, in the script of that end, and wakes the parent.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, NoReturn, Protocol, cast

from attrs import evolve, frozen

from headrace._core.effects import Call, send, send_all
from headrace._core.steps import away
from headrace._core.steps.run import Run
from headrace._model.checks import LEVELS_AT_MOST, count
from headrace._model.codec import bound
from headrace._model.job import NOWHERE, Home, NewJob, is_new
from headrace._model.settings import QueueSettings
from headrace._model.steps import (
    CHILDREN_DEEP,
    Child,
    First,
    Record,
    Signal,
    Timer,
    moment,
    step_name,
)
from headrace._protocol import admin_ops
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.features.runs.ops import TAKEN, TOO_DEEP
from headrace._protocol.keys import ID_BYTES, Keys, job_id
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace.errors import ChildFailed, CodecError, ConfigurationError

STARTED_PER_TRIP = 100
ROOM_BYTES = 24  # of an id, that the script may add
# the words of the children in between, before the reason of the deepest one
NESTED = re.compile(r"^(?:ChildFailed: job '[^']*' is \w+: )+")


# a task, which makes the job of a call
class _Makes(Protocol):
    name: str
    new: Callable[..., NewJob[Any]]


@frozen
class NewChild:
    name: str  # of its record
    job: NewJob[Any]


def new(run: Run, call: object, args: Sequence[Any], options: Mapping[str, Any]) -> NewChild:
    """Make the child of a call, with the next free name. *call* is a task, `(queue, payload)`, or a
    `NewJob`.

    Raises `TypeError` or `ValueError` for anything else, or a job with an id of its own.
    """
    given = dict(options)
    name = given.pop("child", None)
    if callable(getattr(call, "new", None)):
        task = cast("_Makes", call)
        job = task.new(*args, **given)
        base = task.name
    elif args or given:
        raise TypeError("only a task takes arguments: give (queue, payload), or a NewJob, alone")
    elif is_new(call):
        job = call
        base = (job.queue or run.claim.job.queue).rpartition("/")[2]
    else:
        queue, payload = _pair(call)
        job = NewJob(payload, queue=queue)
        base = queue.rpartition("/")[2]
    if job.id is not None:
        raise ValueError(
            f"id {job.id!r:.100}: leave it out, since a child's id is made of its parent's"
        )
    parent = run.claim.job
    if job.queue is None:
        job = evolve(job, queue=str(parent.queue))
    if job.key is not None and (job.queue, job.key) == (str(parent.queue), parent.key):
        raise ConfigurationError(
            f"key {job.key!r:.100}: in the queue of its parent the child would wait behind its parent, "
            "which waits for it: give it another key, or another queue"
        )
    _refuse_elsewhere(run, base, job)
    label = run.names.numbered(base) if name is None else step_name(name, "child", "a child")
    return NewChild(job_id(label), evolve(job, id=_id_of(run, label)))


def _refuse_elsewhere(run: Run, name: str, job: NewJob[Any]) -> None:
    home: Home = getattr(job, "home", NOWHERE)
    if what := home.differs(run.callbacks.home.servers, run.callbacks.home.namespace):
        raise ConfigurationError(
            f"child {name!r}: its task is for another {what} than its parent, which its end would not reach: give both "
            "the same url= and namespace=, or let a step enqueue it, as in job.step('send', send), and wait with "
            "job.wait_for() for a signal that it sends"
        )


def _pair(call: Any) -> tuple[str, Any]:
    match call:
        case (str() as queue, payload):
            return queue, payload
        case _:
            raise TypeError(
                f"a child is a task with its arguments, (queue, payload), or a NewJob, not {call!r:.200}"
            )


def each(run: Run, calls: Any) -> list[NewChild]:
    """Make the children of `run_all`. Each call is `(task, *args)`, `(queue, payload)`, a task
    without arguments, or a `NewJob`."""
    if isinstance(calls, (str, bytes)) or not isinstance(calls, Sequence):
        raise TypeError(f"calls must be a list of children, not {type(calls).__name__}")
    some: Sequence[Any] = calls  # pyright: ignore[reportUnknownVariableType]
    return [new(run, *_parted(call), {}) for call in some]


def _parted(call: Any) -> tuple[Any, Sequence[Any]]:
    match call:
        case (str(), _):
            return call, ()
        case (task, *args):
            return task, args
        case _:
            return call, ()


def cancels(failed: object) -> bool:
    """Tell whether the first failure of `run_all` cancels the others. Raises `ValueError`."""
    if failed not in ("cancel", "wait"):
        raise ValueError(f"failed={failed!r:.100}: give 'cancel' or 'wait'")
    return failed == "cancel"


def most(at_most: object) -> int | None:
    return None if at_most is None else count("at_most", at_most)


def _id_of(run: Run, label: str) -> str:
    made = f"{run.claim.job.id}/{label}"
    if len(made.encode()) <= ID_BYTES - ROOM_BYTES:
        return made
    return f"{sha256(made.encode()).hexdigest()}/{label[:50]}"


def signal_of(name: object) -> Signal:
    return Signal(step_name(name))


def timer(after: timedelta | None, until: datetime | None) -> Timer:
    given = until if after is None else after
    if given is None or (after is not None and until is not None):
        raise ValueError("timer() takes a time, such as days=7, or until=")
    return Timer(given)


def sources_of(run: Run, sources: Mapping[str, Any]) -> dict[str, Any]:
    """Check the sources of `first`, and name its timers."""
    if not sources:
        raise TypeError("first() takes sources by name, as in first(approved=job.signal_of(…))")
    named: dict[str, Any] = {}
    for name, source in sources.items():
        if not isinstance(source, (Signal, Timer, Child)):
            raise TypeError(
                f"first({name}=…) takes job.signal_of(…), job.timer(…), or a child of job.start(…), "
                f"not {source!r:.100}"
            )
        is_timer = isinstance(source, Timer)
        named[name] = evolve(source, name=run.names.numbered(name)) if is_timer else source
    return named


def run(run: Run, child: NewChild) -> Call[Any]:
    """Start a child unless it is recorded, and return its result. Raises `ChildFailed`, and
    `RunSuspended` while it has not ended."""
    run.ask("child", child.name)
    (record,) = yield from _started(run, [child])
    if not record.ended:
        yield from run.stop([record])
    run.resume(record)
    return _value(run, child.job, record)


def start(run: Run, child: NewChild) -> Call[Child]:
    run.ask("child", child.name)
    (record,) = yield from _started(run, [child])
    return Child(child.name, record.child, record.queue, child.job)


def run_all(
    run: Run, children: Sequence[NewChild], at_most: int | None, *, cancels: bool
) -> Call[list[Any]]:
    """Run children, *at_most* at the same time, and return their results in their order.

    The first failure ends it. With *cancels* the other children are cancelled at once, otherwise
    they are waited for.
    """
    for child in children:
        run.ask("child", child.name)
    known = yield from run.known()
    records = {child.name: known[child.name] for child in children if child.name in known}
    yield from away.adopt(run, [(records[c.name], c.job) for c in children if c.name in records])
    while True:
        failure = _first_failure(records.values())
        still = [record for record in records.values() if not record.ended]
        if failure is not None and cancels:
            if not run.replayed:
                yield from cancel(run.ops, [(record.home, record.child) for record in still])
            _fail(failure)
        fresh = [one for one in children if failure is None and one.name not in records]
        room = len(fresh) if at_most is None else max(0, at_most - len(still))
        if not fresh[:room]:
            break
        some = fresh[: min(room, STARTED_PER_TRIP)]
        for record in (yield from _started(run, some)):
            records[record.name] = record
    if still:
        yield from run.stop(still, every=len(fresh) == 0)
    if failure is not None:
        _fail(failure)
    return [_value(run, child.job, records[child.name]) for child in children]


def first(run: Run, label: str, sources: Mapping[str, Any]) -> Call[First]:
    """Return the name and the value of the source that was over first. The choice is recorded."""
    run.ask("first", label)
    records: dict[str, Record] = {}
    for name, source in sources.items():
        records[name] = yield from _source(run, source)
    known = yield from run.known()
    now = run.claim.leased_at
    if label in known:
        run.must_be(known[label], "step")
        name = run.values.decoded(f"first {label!r}", known[label].value)
    else:
        yield from run.undos.missing(run, label)
        if any(map(polls, sources.values())) and not run.replayed:
            records = yield from _read_again(run, records)
        over = {name: one for name, one in records.items() if one.over(now)}
        if not over:
            yield from run.stop(list(records.values()))
        name = min(
            over, key=lambda name: (polls(sources[name]), over[name].ended or over[name].due)
        )
        chosen = run.values.encoded(f"first {label!r}", name)
        yield from run.record(label, chosen, 0.0, kind="step", ended=True)
    if name not in sources:
        raise ConfigurationError(
            f"first {label!r}: {name!r} was the first in this run, and is not among "
            f"{', '.join(sources)} now: keep its name until such runs have ended"
        )
    source = sources[name]
    if isinstance(source, Child):
        return First(name, _value(run, source.job, records[name]))
    if isinstance(source, Signal):
        return First(name, run.values.decoded(f"signal {source.name!r}", records[name].value))
    return First(name, None)


def polls(source: object) -> bool:
    # a timer of no time, which comes after all other sources
    return isinstance(source, Timer) and not source.until


# A poll asks for the state of now. The records of the run are as old as its delivery.
def _read_again(run: Run, records: dict[str, Record]) -> Call[dict[str, Record]]:
    newest = step_ops.own((yield from send(step_ops.read(run.ops, run.claim))))
    again = {name: newest.get(one.name, one) for name, one in records.items()}
    (yield from run.known()).update({one.name: one for one in again.values()})
    return again


def _source(run: Run, source: Signal | Timer | Child) -> Call[Record]:
    if isinstance(source, Signal):
        run.names.sourced.add(source.name)
        return (yield from run.waiting(source.name, "wait", ""))
    if isinstance(source, Timer):
        run.ask("timer", source.name)
        due = moment("timer", source.until, run.claim.leased_at)
        return (yield from run.waiting(source.name, "sleep", "+0" if run.skip_sleeps else due))
    return (yield from run.known())[source.name]


def cancel(ops: Ops, some: Iterable[tuple[str, str]]) -> Call[None]:
    """Cancel jobs, each given by the prefix of its queue's keys and its id, and their children."""
    settings = QueueSettings(priorities=LEVELS_AT_MOST, result_ttl=ops.settings.result_ttl)
    left = list(some)
    while left:
        now = left[:STARTED_PER_TRIP]
        left = left[STARTED_PER_TRIP:]
        yield from away.take_ids(ops, now)
        asked = [
            admin_ops.cancel_run(Ops(Keys.at_prefix(home), settings, namespace=ops.namespace), name)
            for home, name in now
        ]
        left += below((yield from send_all(asked)))


def below(gone: Iterable[admin_ops.Cancelled]) -> list[tuple[str, str]]:
    return [child for one in gone for child in one.children]


def _started(run: Run, children: Sequence[NewChild]) -> Call[list[Record]]:
    """Return the records of children. Children without a record are started, in one round trip."""
    records = yield from run.known()
    fresh = [child for child in children if child.name not in records]
    if fresh:
        yield from run.absent(fresh[0].name)
        found = yield from away.places(run, [child.job for child in fresh])
        asked = [_start(run, *pair) for pair in zip(fresh, found, strict=True)]
        answers = yield from run.noting(asked)
        for child, answer in zip(fresh, answers, strict=True):
            if isinstance(answer, int):
                raise _not_started(run, child, answer)
            records[child.name] = answer
    for child in children:
        run.must_be(records[child.name], "child")
    yield from away.adopt(run, [(records[child.name], child.job) for child in children])
    return [records[child.name] for child in children]


def _start(run: Run, child: NewChild, keys: Keys | None) -> Op[Record | int]:
    if keys is None:  # in this slot it is also started
        return step_ops.child(run.ops, run.claim, child.name, child.job, run.callbacks.context)
    run.ops.follow(child.job, keys)  # a job that can't be encoded is not recorded
    unique = f"{child.job.id}~{secrets.token_hex(4)}"
    return step_ops.child_away(run.ops, run.claim, child.name, keys, unique)


def _not_started(run: Run, child: NewChild, number: int) -> BaseException:
    if number == TAKEN:
        return ValueError(
            f"child {child.name!r}: a job of queue {child.job.queue!r} has the id {child.job.id!r} "
            "already: give the child another name"
        )
    if number == TOO_DEEP:
        return ConfigurationError(
            f"child {child.name!r} would be the {CHILDREN_DEEP + 1}th below each other, and "
            f"{CHILDREN_DEEP} may be: is it its own ancestor's kind?"
        )
    return run.refused(child.name, number)


def _first_failure(records: Any) -> Record | None:
    failed = [one for one in records if one.ended and one.outcome != "completed"]
    return min(failed, key=lambda one: one.ended, default=None)


def _fail(record: Record) -> NoReturn:
    said = record.value
    reason = None if said is None else NESTED.sub("", said.decode("utf-8", "replace"))
    raise ChildFailed(record.child, record.outcome, reason)


def _value(run: Run, job: Any, record: Record) -> Any:
    if record.outcome != "completed":
        _fail(record)
    if record.omitted:
        raise CodecError(
            f"child {record.name!r}: its result has {record.omitted:,} bytes, and a run keeps 64 KiB "
            "of each and 1 MiB in all: let it return a reference to what it has stored"
        )
    codec = bound(getattr(job, "codec", None) or run.ops.codec, record.queue, run.ops.namespace)
    decode = getattr(job, "decode", None)
    return run.values.result(f"child {record.name!r}", record.value, codec, decode)
