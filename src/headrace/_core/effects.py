"""Effects are the requests of `_core`'s generators to the drivers that run them.

A generator yields an effect, as in `yield Wake()`. If the effect has an answer, the generator
receives it, as in `now = yield from Now()`. An error of an effect is thrown into the generator, at
the `yield` that asked for it. It ends the generator unless that handles it. This module has no IO
and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, Generic, TypeVar, cast

from attrs import define, frozen

from headrace._core.notices import Received, Waiter
from headrace._model.event import Event
from headrace._model.job import Claim
from headrace._protocol.limits import OPS_PER_TRIP
from headrace._protocol.op import Arg, Op
from headrace._protocol.replies import Died, Grant, Verdicts
from headrace.errors import NotDurable

R = TypeVar("R")


class Phase(IntEnum):
    """The phase of a worker's life. It only ever goes up."""

    RUNNING = 0
    DRAINING = 1  # take nothing new, let handlers finish
    HALTING = 2  # let go of everything now
    STOPPED = 3


@define(eq=False)
class HeldJob(Claim):
    since: float = 0.0  # of the lease, or its last renewal
    started: float = 0.0  # 0: not yet
    ended: bool = False  # settled or given up: the handler's verdict no longer counts


class Effect:
    """A request of a generator to its driver."""

    __slots__ = ()


Call = Generator[Effect, Any, R]  # a generator of effects that returns an R
Role = Call[None]


class Answered(Effect, Generic[R]):
    """An effect that has an answer. `yield from` returns it."""

    __slots__ = ()

    def __iter__(self) -> Call[R]:
        return cast(R, (yield self))


class Immediate(Effect):
    """An effect that the engine of a worker performs at once."""

    __slots__ = ()


# -- for every driver


@frozen
class Send(Effect):
    """Send these operations in one round trip, at most for the given seconds. The answer is their
    decoded replies."""

    ops: Sequence[Op[Any]]
    within: float | None = None


@frozen
class Overlap(Answered[Any]):
    """Send an operation, and do *meanwhile* while the server works on it. A retry may do
    *meanwhile* again."""

    op: Op[Any]
    meanwhile: Callable[[], None]


@define(eq=False)
class Undoable(Answered[Grant | None]):
    """Send an operation, at most for the given seconds. If its caller is cancelled before the
    answer, run the operation that *undo* makes of it. A retry is the same call.
    """

    op: Op[Grant | None]
    undo: Callable[[Any], Op[Any] | None]
    within: float | None = None
    lane: Any = None  # set by the driver, which knows the call by it
    # set by the driver, too: a caller that is cancelled as the answer comes finds it here
    answer: Grant | None = None


@frozen
class Undo(Effect):
    """Send these operations, each once, for a cancelled caller that does not wait for an answer."""

    ops: Sequence[Op[Any]]


@frozen
class Block(Answered[bool]):
    """Block on the server with this command. The answer is true if there was something."""

    command: tuple[Arg, ...]


@frozen
class BlockAmong(Answered[list[str]]):
    """Block on the server with this command, which reads *keys*. The answer is the keys that had
    entries."""

    command: tuple[Arg, ...]
    keys: Collection[str]


@frozen
class AwaitRoom(Answered[bool]):
    """Block with this command until there may be room for a job, at most *seconds*. The answer is
    true if there may. Callers that wait at the same time may share one connection, and take turns,
    until they end or yield `PassTurn`.
    """

    command: tuple[Arg, ...]
    seconds: float


@frozen
class PassTurn(Effect):
    """Let the next caller that waits for room ask again."""


@frozen
class Sleep(Effect):
    seconds: float


@frozen
class Now(Answered[float]):
    """Ask for the time in seconds, of a clock that never goes back."""


@frozen
class WatchEnds(Answered[Waiter]):
    """Watch for the ends of these jobs from now on. The answer is a `Waiter`, after the given
    seconds at most."""

    names: Sequence[str]
    seconds: float


@frozen
class AwaitEnds(Answered[tuple[dict[str, Event], bool]]):
    """Wait at most for the given seconds. The answer is the ends of jobs by id, and true if to read
    all others."""

    waiter: Waiter
    seconds: float


@frozen
class ForgetEnds(Effect):
    waiter: Waiter


# -- for the driver of views


@frozen
class Scan(Answered[tuple[int, list[str]]]):
    """Scan a bounded number of keys. The answer is the next cursor (0 at the end) and the matching
    names."""

    cursor: int
    pattern: str


@frozen
class Inform(Answered[list[str]]):
    """Ask for INFO. The answer is the text of the server, or of each primary of a cluster."""


# -- for the driver of a worker's roles


@frozen
class Receive(Answered[Received]):
    """Subscribe to these channels, and listen for the given seconds. The answer is `Received`."""

    channels: Sequence[str]
    seconds: float


@frozen
class BlockThen(Answered[tuple[bool, Any]]):
    """Block on the server with this command. When the block ends, *op* runs behind it on the same
    connection.

    The answer is true if the read found something, and the decoded reply, or `None` if it is
    unknown. A worker that stops meanwhile sends *again*, which gets the answer of *op* once more,
    and then undoes the effect of *op*.
    """

    command: tuple[Arg, ...]
    op: Op[Any]
    again: Op[Any]
    undo: Callable[[Any], Op[Any] | None]


@frozen
class Start(Immediate):
    units: Sequence[list[HeldJob]]


@frozen
class TakeBack(Immediate, Answered[tuple[list[list[HeldJob]], bool]]):
    """Take back the units that have not started. The answer is these units, and whether another
    unit has a slot."""


@frozen
class Abort(Immediate):
    held: Sequence[HeldJob]


@frozen
class Wake(Immediate):
    """Wake sleeping roles of this consumer, or of another one, *owner*. With *everyone*, wake
    all."""

    everyone: bool = False
    owner: object = None


@frozen
class For(Immediate, Answered[Any]):
    """Perform an effect for this consumer, in a role of several. The answer is the effect's."""

    consumer: Any
    effect: Immediate


@frozen
class Join(Immediate):
    consumers: Sequence[Any]


@frozen
class Resize(Immediate):
    """Run so many handlers of this consumer's queue at once, if there can be so many threads."""

    consumer: Any
    number: int


@frozen
class LineUp(Immediate):
    """Start the role that obeys the terms of this consumer's queue, which the worker had not
    declared."""


@frozen
class Describe(Immediate, Answered[Mapping[str, str | int]]):
    """Ask for the machine, the versions and the memory of this process."""


@frozen
class Stop(Immediate):
    """Stop the worker. It leases no more jobs, and its handlers finish."""


@frozen
class Log(Immediate):
    """Log an event of this name, which does not stop the worker."""

    event: str
    text: str


@frozen
class NoteDead(Effect):
    """Log, and count, jobs that have become dead letters, each with its queue."""

    died: Iterable[tuple[str, Died]]


def send(op: Op[R]) -> Call[R]:
    (reply,) = yield Send((op,))
    return cast(R, reply)


def send_all(ops: Sequence[Op[R]]) -> Call[list[R]]:
    return cast("list[R]", (yield Send(ops)))


def send_each(ops: Sequence[Op[R]]) -> Call[list[R]]:
    """Send any number of operations, `OPS_PER_TRIP` in a round trip."""
    done: list[R] = []
    for start in range(0, len(ops), OPS_PER_TRIP):
        done += yield from send_all(ops[start : start + OPS_PER_TRIP])
    return done


def on_behalf(consumer: object, call: Role) -> Role:
    with suppress(StopIteration):
        effect = next(call)
        while True:
            made = For(consumer, effect) if isinstance(effect, Immediate) else effect
            effect = call.send((yield made))


def hurried(call: Call[R], seconds: float | None) -> Call[R]:
    """Make a call with a limit of *seconds* for each round trip. `None` sets no limit."""
    try:
        effect = next(call)
        while True:
            if isinstance(effect, Send) and seconds is not None:
                effect = Send(
                    effect.ops, seconds if effect.within is None else min(effect.within, seconds)
                )
            elif isinstance(effect, Undoable):
                effect.within = seconds
            try:
                answer = yield effect
            except BaseException as error:
                effect = call.throw(error)
            else:
                effect = call.send(answer)
    except StopIteration as done:
        return cast(R, done.value)


def settle(op: Op[Verdicts]) -> Call[Verdicts]:
    """Send settlements. Log, and count, the jobs that are dead letters now."""
    try:
        verdicts = yield from send(op)
    except NotDurable as error:  # it happened
        for answer in error.answers:
            yield NoteDead(answer.letters.values())
        raise
    if verdicts.letters:
        yield NoteDead(verdicts.letters.values())
    return verdicts
