"""The tally of a consumer. It counts the ends of jobs, and samples how long they waited and ran.

Counting is part of each job's path, so little happens there. Jobs that are done are counted a batch
of settlements at a time. Their kinds, waits and runs come from samples. Of up to 128 jobs between
two reports each is a sample.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from random import randrange
from typing import Any, cast

from attrs import define, field

from headrace._core.effects import HeldJob
from headrace._core.verdicts import Settlement
from headrace._model.job import Claim
from headrace._model.settings import KIND
from headrace._model.terms import Value, value_of
from headrace._model.views.activity import BOUNDS_S, RANGES, VALUES, value_name

SAMPLES = 128  # after which each sample stands for twice as many jobs
KIND_CHARACTERS = 64  # of a kind that is counted under its own name
DONE, RETRIED, DIED, WAITS = 0, 1, 2, 3  # places in a row
RUNS = WAITS + RANGES
Row = list[int]


def _new_row() -> Row:
    return [0] * (RUNS + RANGES)


@define(eq=False)
class Tally:
    """The counts since the last report. Handlers' threads write it, too. Two that write at the same
    moment may lose a count.
    """

    since: float = 0.0  # when it began
    busy_s: float = 0.0  # seconds that handlers ran whose jobs have ended
    stride: int = 1  # handlers that end for one sample, on average
    gap: int = 1  # handlers that end until the next sample
    samples: int = 0
    done: int = 0  # jobs that completed
    rows: dict[str, Row] = field(factory=dict[str, Row])  # by kind
    # how many jobs of each value of a fair queue completed, and how many failed
    values: dict[Value, Row] = field(factory=dict[Value, Row])

    def row(self, kind: str) -> Row:
        found = self.rows.get(kind)
        return self.rows.setdefault(kind, _new_row()) if found is None else found

    def sample(self, unit: Sequence[HeldJob], now: float, units: int, priorities: int) -> None:
        """Note how long the jobs of *unit* waited and ran, in place of *units* of them."""
        self.samples += 1
        if self.samples % SAMPLES == 0:
            self.stride *= 2
        # by chance, as kinds may come in turns
        self.gap = randrange(1, 2 * self.stride)
        self.busy_s += units * (now - max(unit[0].started, self.since))
        for held in unit:
            if not (held.started and held.leased_at):
                continue
            job = held.job
            row = self.row(job.headers.get(KIND, ""))
            row[RUNS + bisect_left(BOUNDS_S, now - held.started)] += units
            # An entry is added when its job is due. A level's job gets its entry as it is leased.
            since = int(held.entry.partition("-")[0]) / 1000 if priorities == 1 else job.enqueued_at
            wait = held.leased_at - since + held.started - held.since
            row[WAITS + bisect_left(BOUNDS_S, max(0.0, wait))] += units

    def ended(self, value: Value, number: int, *, failed: bool = False) -> None:
        row = self.values.get(value)
        if row is None and len(self.values) < 20 * VALUES:  # between two reports
            row = self.values[value] = [0, 0]
        if row is not None:
            row[failed] += number

    def settled(
        self,
        items: Sequence[Claim | Settlement],
        verdicts: Sequence[bool],
        lost: int,
        path: Sequence[str] = (),
    ) -> None:
        """Count jobs whose settlements were answered by *verdicts*, *lost* of which are false.
        *path* has the headers by which the queue is fair.
        """
        if not items or not isinstance(items[0], Settlement):
            self.done += len(verdicts) - lost
            if path:
                pairs = zip(cast("Sequence[Claim]", items), verdicts, strict=False)
                first, *others = path
                if others:
                    values = [
                        tuple(map(claim.job.headers.get, path)) for claim, yes in pairs if yes
                    ]
                else:  # nearly always
                    values = [(claim.job.headers.get(first),) for claim, yes in pairs if yes]
                for value, number in Counter(values).items():
                    self.ended(value, number)
            return
        letters: Any = getattr(verdicts, "letters", ())
        some = cast("Sequence[Settlement]", items)
        for number, (one, yes) in enumerate(zip(some, verdicts, strict=False)):
            if not yes:
                continue
            kind = one.claim.job.headers.get(KIND, "")
            failed = True
            if one.kind == "dead" or number in letters:
                self.row(kind)[DIED] += 1
            elif one.kind == "retry" and one.spend > 0:
                self.row(kind)[RETRIED] += 1
            elif one.kind not in ("retry", "release"):
                self.done += 1
                failed = False
            else:
                continue
            if path:
                self.ended(value_of(path, one.claim.job.headers), 1, failed=failed)

    def taken(
        self, now: float, host: str, slots: float, running: Sequence[HeldJob], batch: int
    ) -> str:
        """Return the counts for the script, '' without any, and begin anew. *slots* is the number
        of handlers that may run at once, *batch* how many jobs a handler takes.
        """
        busy = self.busy_s + sum(now - max(one.started, self.since) for one in running) / batch
        if not (self.rows or self.done or busy > 0):
            return ""
        done, rows = self._counted()
        elapsed = min(now - self.since, 60.0)  # a record is of a minute
        self.since = now
        ends = [sum(row[place] for row in rows.values()) for place in (RETRIED, DIED)]
        times = [round(1000 * busy), round(1000 * max(busy, slots * elapsed))]
        said: dict[str, Row] = {f"h{host}": [done, *ends, *times]}
        for kind, row in rows.items():
            name = kind if len(kind) <= KIND_CHARACTERS else kind[: KIND_CHARACTERS - 1] + "…"
            name = "k" + name.encode(errors="replace").decode()
            earlier = said.get(name)
            said[name] = (
                row if earlier is None else [a + b for a, b in zip(earlier, row, strict=True)]
            )
        values = sorted(self.values.items(), key=lambda one: -sum(one[1]))
        self.values = {}
        said |= {f"v{value_name(value)}": row for value, row in values[:VALUES]}
        if rest := [row for _, row in values[VALUES:]]:
            said["ov"] = [sum(numbers) for numbers in zip(*rest, strict=True)]
        return json.dumps(said, separators=(",", ":"))

    def _counted(self) -> tuple[int, Mapping[str, Row]]:
        """Return how many jobs completed, and the rows, and begin anew. The kinds of the completed
        jobs are shared out by the samples.
        """
        done, rows = self.done, self.rows
        self.rows = {}
        self.done = 0
        self.busy_s = 0.0
        self.samples = 0
        self.stride = max(1, self.stride // 4)
        self.gap = 1
        if done:
            seen = {kind: sum(row[RUNS:]) - row[RETRIED] - row[DIED] for kind, row in rows.items()}
            whole = sum(number for number in seen.values() if number > 0)
            left = done
            for kind, number in sorted(seen.items(), key=lambda one: one[1]):
                rows[kind][DONE] = max(0, round(done * number / whole)) if whole else 0
                left -= rows[kind][DONE]
            first = max(seen, key=lambda kind: seen[kind], default="")
            rows.setdefault(first, _new_row())[DONE] += left
        return done, rows
