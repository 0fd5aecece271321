"""A storm on a cluster. Its programs go on while masters die, freeze and are replaced, slots move,
and connections are cut. The number of shards changes meanwhile.

What holds, and is judged, depends on what the faults lose (`faults`):

- Nothing that was acknowledged (`EXACT`): each job is completed once, those of an ordered key one
  at a time and in order, follow-ups come to their shards once, and all counts add up.
- What a master had acknowledged, and its replica did not have (`LOSING`): calls wait for a replica
  (`durable=`), and what they have acknowledged is done; a job whose completion is lost is done
  again.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any, Self

import redis

from headrace import Queue
from tests.cluster import faults
from tests.cluster.actors import CHILDREN, GROUP, SHARDS, SPREAD, Cast
from tests.cluster.judge import Judge
from tests.support.awaiting import until
from tests.support.cluster import Cluster

NUMBERS = (2, 3, 4, 5)  # of shards


class Storm:
    """One storm, decided by its seed. It is a context manager whose exit waits for calm and judges.
    *parts* is the largest number of shards in the table, including shards that only give jobs away.
    At that number no change begins.
    """

    def __init__(
        self, cluster: Cluster, seed: int, *, exact: bool = True, pause: float = 0.03, parts: int = 24,
        durable: str | None = None,
    ) -> None:  # fmt: skip
        self._cluster, self._dice, self._exact, self._parts = (
            cluster,
            random.Random(seed),
            exact,
            parts,
        )
        self.judge = Judge(exact)
        self._cast = Cast(cluster.url, cluster.groups(), self.judge, pause, durable)
        self.happened: Counter[str] = Counter()
        self.complaints = self.judge.complaints

    # -- what happens ------------------------------------------------------------------------------

    def blow(self, seconds: float, until_heard: str = "") -> None:
        """Let one fault happen after another, each kind at least once, while the number of shards
        changes. End at the first complaint of the kind *until_heard*.
        """
        kinds = list(faults.EXACT if self._exact else faults.LOSING)
        kinds += [faults.move] if self._exact and self._cluster.moves_slots_at_once else []
        enough = threading.Event()
        timer = threading.Timer(seconds, enough.set)
        timer.start()
        left = self._dice.sample(kinds, len(kinds))
        try:
            while (left or not enough.is_set()) and until_heard not in self.complaints:
                left = left or self._dice.sample(kinds, len(kinds))
                fault, change = left.pop(), self._change()
                fault(self._cluster, self._dice.choice(self._places()))
                if change is not None:
                    change.join()
                self.happened[fault.__name__] += 1
                self._goes_on()
        finally:
            timer.cancel()

    def _places(self) -> list[str]:
        """The hash tags of plain queues, of the table of shards, and of all that are in it."""
        with self._cast.queue(SPREAD) as queue:
            parts = _table(queue).shards
        return [*self._cast.plain, GROUP, GROUP, *(part.tag(GROUP) for part in parts)]

    def _change(self) -> threading.Thread | None:
        """Begin to change the number of shards. Some clients give up soon, and a worker goes on
        with the change."""
        with self._cast.queue(SPREAD) as queue:
            table = _table(queue)
        there, timeout = len(table.shards), self._dice.choice([0.2, 45.0])
        numbers = [
            number
            for number in NUMBERS
            if number != len(table.takers) and there + number <= self._parts
        ]
        if not numbers or table.changing:
            return None
        number = self._dice.choice(numbers)
        thread = threading.Thread(target=self._cast.act, args=(self._reshard, (number, timeout)))
        thread.start()
        return thread

    def _reshard(self, how: tuple[int, float]) -> None:
        number, timeout = how
        with self._cast.queue(SPREAD, timeout=timeout) as queue:
            try:
                queue.admin.reshard(number)
            except redis.RedisError:
                if timeout > 1:
                    raise
                self.happened["given up"] += 1
        self.happened["reshard"] += 1

    def _goes_on(self) -> None:
        """Wait until jobs of every queue have ended since the call."""
        ended, names = self.judge.ended, self._cast.queues
        before = Counter(ended)
        try:
            until(lambda: all(ended[name] > before[name] for name in names), "work on all queues")
        except AssertionError:
            self.judge.complain("asleep", f"after {dict(self.happened)}: {before} → {ended}")

    # -- what must be true -------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._cast.start()
        return self

    def __exit__(self, kind: object, error: object, tb: object) -> None:
        self._cast.calm()
        try:
            if error is None:
                self._sentence()
        finally:
            self._cast.close()

    def _sentence(self) -> None:
        with self._cast.queue(SPREAD) as queue:
            queue.admin.reshard()
            if _table(queue).changing:
                self.judge.complain("stuck", f"a change: {_table(queue)}")
        # the last one has the ends of chains
        for name in sorted(self._cast.queues, key=lambda name: name == SPREAD):
            with self._cast.queue(name) as queue:
                self.judge.sentence(name, self._at_rest(queue))
        for flow in self._cast.flows:
            shards, begun = SHARDS if flow.name == GROUP else 1, self._cast.begun[flow.name]
            for stage, each in (("split", 1), ("work", len(CHILDREN)), ("join", 1)):
                with Queue(f"{flow.name}/{stage}", url=self._cluster.url, shards=shards) as queue:
                    counts = self._at_rest(queue)
                    self.judge.law(queue.name, counts)
                    if counts.completed != len(begun) * each and self._exact:
                        what = "lost" if counts.completed < len(begun) * each else "twice"
                        self.judge.complain(what, f"{queue.name}: {counts} of {len(begun)} runs")
            if missing := begun - self._cast.joined[flow.name]:
                self.judge.complain(
                    "lost", f"{flow.name}: {sorted(missing)[:3]} of {len(begun)} runs did not end"
                )

    def _at_rest(self, queue: Queue[Any]) -> Any:
        """Wait until a queue is empty, and return its counts."""
        try:
            until(lambda: not queue.counts().present, "an empty queue")
        except AssertionError:
            self.judge.complain("stuck", f"{queue.name}: {queue.counts()}")
        return queue.counts()

    def story(self) -> str:
        """Return the events and the complaints as text."""
        joins = sum(map(len, self._cast.joined.values()))
        return f"{dict(self.happened)}; longest call {self._cast.slowest:.1f} s; {joins:,} flows; {self.judge.story()}"


def _table(queue: Queue[Any]) -> Any:
    queue.admin.shards()  # reads it
    return queue._verbs.map.table  # type: ignore[union-attr]  # it has shards
