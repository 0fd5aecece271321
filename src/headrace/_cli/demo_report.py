"""The evidence that a run of the demo leaves, its check, and its presentation."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import define, field, frozen

from headrace._model.state import Counts

if TYPE_CHECKING:  # it is imported where it is used: no other command needs it as it starts
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table


@frozen
class Killed:
    """The worker that was killed."""

    name: str
    pid: int
    leased: int
    completed: int  # jobs, by all workers, until then


@frozen
class Started:
    """A line of a worker's log: it ran a job."""

    job: str
    attempt: int


@frozen
class Evidence:
    """The expected and the actual results, the queue's counts, the completions, and the workers' logs."""

    expected: Mapping[str, str]
    results: Mapping[str, str | None]
    counts: Counts
    runs: Sequence[Started]
    completions: Sequence[str]  # ids of jobs, as the events of the queue told
    killed: Killed | None = None

    @property
    def twice(self) -> list[str]:
        """Jobs that were completed more than once."""
        return [job for job, times in Counter(self.completions).items() if times > 1]

    def differences(self) -> list[str]:
        """List everything that is not as promised."""
        wrong: list[str] = []
        completed = set(self.completions)
        for found, text in (
            ([job for job in self.expected if self.results.get(job) is None], "without a result"),
            (
                [job for job, one in self.results.items() if one is not None and one != self.expected.get(job)],
                "with another result than the single pass",
            ),
            (self.twice, "completed twice"),
            ([job for job in self.expected if job not in completed], "whose completion nobody saw"),
            ([job for job in sorted(completed) if job not in self.expected], "completed that nobody enqueued"),
        ):
            if found:
                wrong.append(f"{len(found)} jobs {text}, such as {found[0]}")
        n, counts = len(self.expected), self.counts
        for name, number, wanted in (
            ("enqueued", counts.enqueued, n),
            ("completed", counts.completed, n),
            ("lost", counts.lost, 0),
            ("still in the queue", counts.present, 0),
        ):
            if number != wanted:
                wrong.append(f"{name}: {number} instead of {wanted}")
        return wrong


def read_log(path: Path) -> list[Started]:
    """Read the whole lines of a worker's log."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [Started(*json.loads(line)) for line in whole.splitlines()]


def taken_over(runs: Iterable[Started]) -> int:
    """Count the jobs that were run by another worker than the first that leased them."""
    return len({run.job for run in runs if run.attempt > 1})


def totals(results: Mapping[str, str | None]) -> dict[str, str]:
    """Aggregate all results."""
    rows: list[dict[str, Any]] = [json.loads(result) for result in results.values() if result is not None]
    sums = {key: sum(row[key] for row in rows) for key in ("lines", "functions", "classes")}
    unparsable = sum(row["state"] == "unparsable" for row in rows)
    digest = hashlib.sha256(json.dumps(sorted(results.items())).encode()).hexdigest()[:16]
    shown = {"modules": len(rows), "unparsable": unparsable, **sums}
    return {**{key: f"{number:,}" for key, number in shown.items()}, "digest of all results": digest}


@define
class Show:
    """Live progress: a bar on a terminal, a line a second elsewhere."""

    console: Console
    total: int
    logs: Sequence[Path]
    _bar: Progress | None = field(init=False, default=None)
    _said: float = field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        if self.console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            text = TextColumn("{task.fields[state]}")
            self._bar = Progress(BarColumn(), MofNCompleteColumn(), text, console=self.console, transient=True)
            self._bar.add_task("", total=self.total, state="")

    def live(self) -> AbstractContextManager[object]:
        """Return a context during which progress is shown."""
        return nullcontext() if self._bar is None else self._bar

    def update(self, counts: Counts, seconds: float, more: str = "") -> None:
        """Show the progress."""
        if self._bar is None and seconds - self._said < 1.0:
            return
        self._said = seconds
        taken = taken_over(run for log in self.logs for run in read_log(log))
        rate = counts.completed / max(seconds, 1e-3)
        state = f"{counts.waiting} waiting, {counts.leased} leased, {taken} reclaimed, {more or f'{rate:,.0f}/s'}"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=counts.completed, state=state)
        else:
            self.console.print(f"{seconds:5.1f} s: {counts.completed} of {self.total} completed, {state}")


def tables(evidence: Evidence, *, plain: bool) -> tuple[Table, Table]:
    """Make two tables: the results of queue and single pass, and where all jobs are."""
    from rich.box import HEAVY_HEAD
    from rich.table import Table

    box = None if plain else HEAVY_HEAD
    results = Table("the same work", box=box)
    for column in ("by the queue", "by a single pass"):
        results.add_column(column, justify="right")
    expected = totals(evidence.expected)
    for name, value in totals(evidence.results).items():
        results.add_row(name, value, expected[name])
    conservation = Table("where the jobs are", box=box)
    conservation.add_column("jobs", justify="right")
    counts = evidence.counts
    conservation.add_row("enqueued", f"{counts.enqueued:,}", end_section=True)
    for name, number in attrs.asdict(counts).items():
        if name != "enqueued":
            conservation.add_row(name.replace("_", " "), f"{number:,}", end_section=name == "dead_trimmed")
    conservation.add_row("lost", f"{counts.lost:,}")
    conservation.add_row("completed twice", f"{len(evidence.twice):,}")
    return results, conservation


def report(console: Console, evidence: Evidence, seconds: float) -> int:
    """Print the report; return 0 if every promise was kept, otherwise 1."""
    console.print()
    for table in tables(evidence, plain=not console.is_terminal):
        console.print(table)
        console.print()
    if evidence.killed is None:
        console.print("Nobody was killed: so few jobs were done too soon.")
    else:
        killed = evidence.killed
        console.print(
            f"{killed.name} (process {killed.pid}) was killed with SIGKILL after {killed.completed:,} completions, "
            f"when {killed.leased} jobs were leased to it."
        )
    again = sum(times > 1 for times in Counter(run.job for run in evidence.runs).values())
    total = len(evidence.expected)
    console.print(
        f"{taken_over(evidence.runs)} jobs were reclaimed; {again} had been started, and were run again.\n"
        f"{total:,} jobs in {seconds:.1f} s, {total / seconds:,.0f}/s, while a single pass ran beside them."
    )
    wrong = evidence.differences()
    for one in wrong:
        console.print(f"DIFFERENT: {one}", style="red", markup=False)
    if not wrong:
        console.print("Lost 0, completed twice 0, and the results are the same.")
    return 1 if wrong else 0
