"""The tallies of workers, as they are shown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Literal

from attrs import frozen

Step = Literal["minute", "ten minutes"]
STEP_S = {"minute": 60, "ten minutes": 600}  # seconds of a record
STEPS = {"minute": 120, "ten minutes": 144}  # records that are kept: two hours, and a day
VALUES = 50  # of a fair queue that are counted in a minute, the ones with the most jobs
RANGES = 16  # of waits and runs
BOUNDS_S = tuple(0.002 * 2.5**number for number in range(RANGES - 1))  # their upper bounds
NO_TIMES = (0,) * RANGES


def value_name(value: Sequence[str | None]) -> str:
    """Return the name of a value of a fair queue in tallies, or its digest if that is shorter."""
    name = json.dumps(value, separators=(",", ":"))
    return min(name, sha256(name.encode()).hexdigest(), key=len)


@frozen
class Ends:
    """The jobs of one kind whose attempts ended in some time. `done` of them completed, `retried`
    failed and run again, and `died` became dead letters. `waits` and `runs` have how many jobs
    waited, and ran, for as long as each of 16 ranges of seconds: see `p95`. They are estimates, by
    samples.
    """

    done: int = 0
    retried: int = 0
    died: int = 0
    waits: Sequence[int] = NO_TIMES
    runs: Sequence[int] = NO_TIMES

    @staticmethod
    def p95(times: Sequence[int]) -> float | None:
        """Estimate the seconds that 95 of 100 of *times* did not exceed. Returns `None` without
        any."""
        wanted = 0.95 * sum(times)
        if not wanted:
            return None
        before = 0
        for number, count in enumerate(times):
            if before + count >= wanted:
                low = BOUNDS_S[number - 1] if number else BOUNDS_S[0] / 2.5
                high = BOUNDS_S[number] if number < len(BOUNDS_S) else BOUNDS_S[-1] * 2.5
                return float(low * (high / low) ** ((wanted - before) / count))
            before += count
        return math.inf

    @classmethod
    def of(cls, some: Iterable[Ends]) -> Ends:
        """Sum several."""
        whole = cls()
        for one in some:
            whole = cls(
                whole.done + one.done,
                whole.retried + one.retried,
                whole.died + one.died,
                [a + b for a, b in zip(whole.waits, one.waits, strict=True)],
                [a + b for a, b in zip(whole.runs, one.runs, strict=True)],
            )
        return whole


@frozen
class MachineWork:
    """The work of one machine in some time. `busy` is the seconds that its handlers ran, of the
    `slots` seconds that they could have run.
    """

    done: int = 0
    retried: int = 0
    died: int = 0
    busy: float = 0.0
    slots: float = 0.0

    @property
    def share(self) -> float | None:
        """The busy part, `None` if no handler could run."""
        return min(1.0, self.busy / self.slots) if self.slots else None


@frozen
class ActivityPoint:
    """The counts of workers in the minute, or the ten minutes, that began at `at`. `kinds` has ''
    for jobs without a kind. `None` stands for the rest, after the first eight.
    """

    at: float
    kinds: Mapping[str | None, Ends]
    machines: Mapping[str | None, MachineWork]


@frozen
class Activity:
    """The counts of the workers of some queues, the oldest first. Times without any work have
    no point. Jobs that are leased without a worker are not counted. `late` is how many queues have
    not been read yet, as 25 new ones are read at once.
    """

    now: float
    step: Step
    points: tuple[ActivityPoint, ...]
    late: int = 0
