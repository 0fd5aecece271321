"""What a worker's roles yield to its engine, and what they hold."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import IntEnum
from typing import Any

from attrs import define, frozen

from headrace._job import Claim
from headrace._op import Arg, Op


class Phase(IntEnum):
    """A worker's life. It only ever goes up."""

    RUNNING = 0
    DRAINING = 1  # take nothing new, let handlers finish
    HALTING = 2  # let go of everything now
    STOPPED = 3


@frozen
class Send:
    """Send these operations in one round trip; answered with their replies."""

    ops: Sequence[Op[Any]]


@frozen
class Listen:
    """Block on the server; answered with whether there was something."""

    command: tuple[Arg, ...]


@frozen
class Hear:
    """Listen on these channels for so many seconds, subscribed to them; answered with `Heard`."""

    channels: Sequence[str]
    seconds: float


@frozen
class Pause:
    """Wait until poked, or so many seconds."""

    seconds: float


@frozen
class Now:
    """The time of a clock that never goes back."""


@frozen
class Start:
    """Run the handler of *feed* on each of these units, as slots become free."""

    units: Sequence[list[Held]]


@frozen
class Recall:
    """Answered with the units that have not started; they no longer will."""


@frozen
class Abort:
    """Tell these handlers that their job is lost; an async one is cancelled."""

    held: Sequence[Held]


@frozen
class Poke:
    """Wake the roles of this feed, of *whose*, or of the whole worker."""

    everyone: bool = False
    whose: object = None


@frozen
class Say:
    """Tell the user, in the log, of something that goes wrong without us."""

    text: str


Effect = Send | Listen | Hear | Pause | Now | Start | Recall | Abort | Poke | Say
Role = Generator[Effect, Any, None]


@define(eq=False)
class Held(Claim):
    """A claim between lease and settlement."""

    since: float = 0.0  # of the lease, or its last renewal
    started: float = 0.0  # 0: not yet
    ended: bool = False  # settled or given up: what the handler still says does not count
