"""The panes of workers, for all programs, for the registrations of one, and for a registration with
its running jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from headrace.console.programs import Program, programs, versions_of
from headrace.console.texts import Refused, clock, from_now, in_words, jobs, memory, short
from headrace.console.top.acts import (
    JOB_BINDINGS,
    JOB_KEYS,
    WORKER_BINDINGS,
    WORKER_KEYS,
    job_action,
    worker_action,
)
from headrace.console.top.job import JOB_COLUMNS, JobPane, job_row, since
from headrace.console.top.pane import Column, Key, Pane, PendingAction, Row
from headrace.inspect import WorkerFacts, WorkerState
from headrace.platform import one_line

NO_FACTS = WorkerFacts("", "", "", 0, 0, 0, 0.0)
STYLES = {"DEAD": "bold red", **dict.fromkeys(("quiet", "stops", "mixed"), "bold yellow")}


def state_of(worker: WorkerState) -> str:
    return (
        {"quiet": "quiet", "stop": "stops"}.get(worker.asked, "alive") if worker.alive else "DEAD"
    )


def _facts_text(facts: WorkerFacts) -> str:
    used = f" · {memory(facts.memory)}" if facts.memory else ""
    place = f"{one_line(facts.host)}, process {facts.pid}"
    return f"{place} · headrace {one_line(facts.version)}, Python {one_line(facts.python)}{used}"


def _running(number: int, slots: int) -> str:
    return f"{short(number)} of {slots}" if slots else short(number)


def _styles_of(column: int, state: str) -> tuple[tuple[int, str], ...]:
    return ((column, STYLES[state]),) if state in STYLES else ()


class WorkersPane(Pane):
    BINDINGS: ClassVar[list[BindingType]] = [*WORKER_BINDINGS]
    KEYS = WORKER_KEYS
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("worker", flexible=2, middle=True),
        Column("queues", flexible=1),
        Column("state", 5),
        Column("runs", 8, right=True),
        Column("machine", flexible=1, middle=True),
        Column("memory", 8, right=True),
        Column("version", 7),
        Column("since", 6, right=True),
    )
    heading = "workers"

    def __init__(self) -> None:
        super().__init__()
        self._programs: dict[Key, Program] = {}

    async def read(self) -> None:
        view = await self.top.inspector.overview()
        found = programs(view.workers)
        self._programs = {_key_of(one): one for one in found}
        versions = versions_of(found)
        several = (
            f" · ! of several versions: {', '.join(map(one_line, versions))}"
            if len(versions) > 1
            else ""
        )
        head = f"{sum(one.alive for one in found)} of {len(found)} workers alive{several}"
        self.fill(view.now, [head], [self._row(one, view.now) for one in found])

    @staticmethod
    def _row(one: Program, now: float) -> Row:
        facts = one.facts or NO_FACTS
        states = [state_of(member) for member in one.states]
        state = states[0] if len(states) == 1 else "mixed"
        used = memory(facts.memory) if facts.memory else ""
        machine = f"{one_line(facts.host)} {facts.pid}" if one.facts else ""
        queues = ", ".join(one.queues)
        runs = _running(one.running, one.slots)
        its = machine, used, one_line(facts.version), since(one.since or None, now)
        values = (
            one.name,
            queues,
            state,
            one.running,
            machine,
            facts.memory,
            facts.version,
            -one.since,
        )
        return Row(
            _key_of(one),
            (one_line(one.name), queues, state, runs, *its),
            _styles_of(2, state),
            values,
        )

    def chosen(self, key: Key) -> None:
        self.top.push_screen(
            WorkerPane(*key) if len(self._programs[key].members) == 1 else ProgramPane(key)
        )

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        one = self._programs.get(key) if key else None
        if one is None:
            return None
        if len(one.members) > 1 and action != "stop_worker":
            raise Refused(
                f"It is registered {len(one.members)} times: open it by Enter, and choose where."
            )
        return worker_action(action, one.states[0])


def _key_of(one: Program) -> Key:
    return (one.members[0].queue, one.members[0].name)


class ProgramPane(Pane):
    BINDINGS: ClassVar[list[BindingType]] = [*WORKER_BINDINGS]
    KEYS = WORKER_KEYS
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("queue", flexible=1),
        Column("state", 5),
        Column("runs", 8, right=True),
        Column("registered as", flexible=2, middle=True),
        Column("until", 9, right=True),
    )

    def __init__(self, key: Key) -> None:
        super().__init__()
        self._member = key
        self.heading = "worker"
        self._workers: dict[Key, WorkerState] = {}

    async def read(self) -> None:
        view = await self.top.inspector.overview()
        known = {self._member, *self._workers}  # it may have registered again, under another name
        found = [
            one
            for one in programs(view.workers)
            if known & {(of.queue, of.name) for of in one.members}
        ]
        if not found:
            self.fill(view.now, ["It is not registered any more."])
            return
        one = found[0]
        self._workers = {(member.queue, member.name): member for member in one.members}
        self.heading = f"worker {one_line(one.name)}"
        states = ", ".join(map(state_of, one.states))
        head = [
            f"{states} since {clock(one.since or None)} · {_running(one.running, one.slots)} running"
        ]
        head += [_facts_text(one.facts)] if one.facts is not None else []
        self.fill(
            view.now,
            head,
            [self._row(key, member, view.now) for key, member in self._workers.items()],
        )

    @staticmethod
    def _row(key: Key, worker: WorkerState, now: float) -> Row:
        state = state_of(worker)
        slots = worker.facts.slots if worker.facts else 0
        texts = worker.queue, state, _running(worker.leased, slots), one_line(worker.name)
        values = (worker.queue, state, worker.leased, worker.name, worker.deadline)
        return Row(
            key, (*texts, from_now(worker.deadline, now, narrow=True)), _styles_of(1, state), values
        )

    def chosen(self, key: Key) -> None:
        self.top.push_screen(WorkerPane(*key))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        worker = self._workers.get(key) if key else None
        return None if worker is None else worker_action(action, worker)


class WorkerPane(Pane):
    BINDINGS: ClassVar[list[BindingType]] = [*JOB_BINDINGS, *WORKER_BINDINGS]
    KEYS = f"""\
{WORKER_KEYS}
{JOB_KEYS}"""
    COLUMNS: ClassVar[Sequence[Column]] = JOB_COLUMNS["worker"]

    def __init__(self, queue: str, worker: str) -> None:
        super().__init__()
        self.queue = queue
        self.worker = worker
        self.heading = f"{queue} · worker {one_line(worker)}"
        self._state: WorkerState | None = None

    async def read(self) -> None:
        view = await self.top.inspector.worker(self.queue, self.worker)
        now = (await self.top.inspector.queue(self.queue)).now
        if view is None:
            self.fill(now, ["It is not registered any more."])
            return
        self._state = worker = view.worker
        began = f" since {clock(worker.since)}" if worker.since else ""
        shown = f", {len(view.jobs)} of them below" if len(view.jobs) < worker.leased else ""
        head = [f"{state_of(worker)}{began} · {jobs(worker.leased)} leased{shown}"]
        if worker.facts is not None:
            head.append(_facts_text(worker.facts))
        if worker.alive and worker.differs is not None:
            its = in_words(one_line(worker.differs.structure))
            head.append(
                f"! declares the terms {its}, and the queue has others, since {clock(worker.differs.since)}"
            )
        self.fill(now, head, [job_row(job, now, "worker") for job in view.jobs])

    def chosen(self, key: Key) -> None:
        self.top.push_screen(JobPane(self.queue, key[0]))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        if action.endswith("_worker"):
            return None if self._state is None else worker_action(action, self._state)
        return job_action(action, self.queue, *key) if key else None
