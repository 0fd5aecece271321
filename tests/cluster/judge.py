"""The judge of a storm on a cluster. It records requests, acknowledgements and runs outside Redis.

`Judge.complaints` says what does not agree:

    failed     a call or a worker has raised
    lost       a job was acknowledged, and never done
    twice      a job was completed twice, or was added twice
    phantom    a job was done that nobody asked for
    order      of a key in an ordered queue two jobs ran at a time, or a later one first
    law        a queue's counts do not add up
    stuck      something is left at the end, or a change of the number of shards is
    asleep     a queue's jobs no longer ended between two faults

Where masters die with what they had acknowledged (`exact=False`), a job whose completion is lost is
completed once more; then nothing is said of *twice* and *order*. What a durable call has
acknowledged is judged as ever.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable

from attrs import define, field

from headrace import Counts

Named = tuple[str, str]
"""A queue, and the name of a job, which is its payload."""
FEW = 5  # complaints of a kind that are kept


@define(eq=False)
class Judge:
    """The records of all events, from any thread."""

    exact: bool = True
    complaints: dict[str, list[str]] = field(factory=lambda: defaultdict[str, list[str]](list))
    asked: set[Named] = field(factory=set[Named])
    acknowledged: dict[str, set[str]] = field(factory=lambda: defaultdict[str, set[str]](set))
    runs: Counter[Named] = field(factory=Counter[Named])
    ended: Counter[str] = field(factory=Counter[str])  # runs, by queue
    # of calls that were not as durable as they were to be
    unsure: set[Named] = field(factory=set[Named])
    _lock: threading.Lock = field(factory=threading.Lock)
    _won: Counter[Named] = field(factory=Counter[Named])  # by plain leases
    # the number of an ordered job, by its key
    _running: dict[Named, int] = field(factory=dict[Named, int])
    # the number of the last that has ended
    _last: dict[Named, int] = field(factory=dict[Named, int])

    def complain(self, what: str, text: str) -> None:
        """Record a complaint. Only the first few of a kind are kept."""
        if not self.exact and what in ("twice", "order"):
            return
        with self._lock:
            if len(self.complaints[what]) < FEW:
                self.complaints[what].append(text)

    def asks(self, queue: str, names: Iterable[str]) -> None:
        """Record jobs that are about to be enqueued."""
        with self._lock:
            self.asked.update((queue, name) for name in names)

    def takes(self, queue: str, names: Iterable[str]) -> None:
        """Record the acknowledgement of jobs."""
        with self._lock:
            self.acknowledged[queue].update(names)

    def doubts(self, queue: str, names: Iterable[str]) -> None:
        """Record an acknowledgement that is less durable than asked for."""
        with self._lock:
            self.unsure.update((queue, name) for name in names)

    def ran(self, queue: str, name: str) -> None:
        with self._lock:
            self.runs[queue, name] += 1
            self.ended[queue] += 1

    def won(self, queue: str, name: str) -> None:
        """Record that a plain lease has completed its job."""
        with self._lock:
            self._won[queue, name] += 1
            again = self._won[queue, name] > 1
        self.ran(queue, name)
        if again:
            self.complain("twice", f"{name} of {queue} is completed by two plain leases")

    def begins(self, queue: str, key: str, number: int) -> None:
        """Begin an ordered job. Its key has no other running job, and all earlier jobs have ended.
        It may run again after a lost lease, until the next job of its key has begun.
        """
        with self._lock:
            other, last = self._running.get((queue, key)), self._last.get((queue, key), -1)
            self._running[queue, key] = number
        if other is not None and other != number:
            self.complain("order", f"{key} of {queue}: {number} begins while {other} runs")
        if number not in (last, last + 1):
            self.complain("order", f"{key} of {queue}: {number} begins after {last}")

    def ends(self, queue: str, key: str, number: int) -> None:
        """Record the end of a job's run."""
        with self._lock:
            self._running.pop((queue, key), None)
            self._last[queue, key] = max(number, self._last.get((queue, key), -1))

    @property
    def behind(self) -> int:
        """The number of jobs that were acknowledged, and have not run."""
        return sum(map(len, self.acknowledged.values())) - len(self.runs)

    # -- at the end --------------------------------------------------------------------------------

    def sentence(self, queue: str, counts: Counts) -> None:
        """Compare the ends of all jobs of a queue that is at rest."""
        ours, done = self.acknowledged[queue], {name for there, name in self.runs if there == queue}
        if missing := ours - done:
            self.complain("lost", f"{len(missing)} of {queue}: {sorted(missing)[:3]}")
        if strange := {name for name in done if (queue, name) not in self.asked}:
            self.complain("phantom", f"{len(strange)} of {queue}: {sorted(strange)[:3]}")
        if (counts.enqueued, counts.completed) != (len(ours), len(ours)):
            self.complain("twice", f"{queue}: of {len(ours)} jobs there are {counts}")
        self.law(queue, counts)

    def law(self, queue: str, counts: Counts) -> None:
        """Check that counts add up."""
        if counts.lost:
            self.complain("law", f"{queue}: {counts}")

    def story(self) -> str:
        """Return the events and the complaints as text."""
        again = sum(self.runs.values()) - len(self.runs)
        return (
            f"{sum(map(len, self.acknowledged.values())):,} acknowledged; {len(self.unsure):,} not durably, "
            f"{len(self.unsure - self.runs.keys()):,} of them lost; "
            f"{sum(self.runs.values()):,} runs, {again:,} of them again; {sum(self._won.values()):,} by plain leases; "
            f"complaints {dict(self.complaints)}"
        )
