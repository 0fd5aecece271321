"""The keys that act on queues, jobs and workers, and the questions that they ask first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from headrace.console.texts import counted, jobs
from headrace.console.top.pane import Key, Pane, PendingAction
from headrace.inspect import QueueView, WorkerState
from headrace.platform import WORDS, one_line

DEAD_BINDINGS: Sequence[BindingType] = (
    ("R", "act('redrive')", "Redrive"),
    ("X", "act('purge_dead')", "Remove dead letters"),
)
DEAD_KEYS = """\
R  X    redrive its dead letters, remove them for good"""
ALL_KEYS = """\
g       dead letters of all queues by reason"""
QUEUE_BINDINGS: Sequence[BindingType] = (
    ("p", "act('pause')", "Pause"),
    ("c", "act('set_concurrency')", "Concurrency"),
    ("P", "act('purge')", "Purge"),
    *DEAD_BINDINGS,
    ("D", "act('delete')", "Delete"),
)
QUEUE_KEYS = f"""\
p  c    pause the queue, or resume it; how many handlers a worker runs
P       purge it: remove the jobs that wait
{DEAD_KEYS}
D       delete it: asks for its name"""
WORKER_BINDINGS: Sequence[BindingType] = (
    ("u", "act('quiet_worker')", "Quiet"),
    ("S", "act('stop_worker')", "Stop"),
    ("F", "act('fail_worker')", "Fail"),
)
WORKER_KEYS = """\
u       quiet: it leases no more jobs of this queue; or resume
S       stop its program, once its jobs have ended
F       fail the worker: declare it dead in this queue"""
JOB_BINDINGS: Sequence[BindingType] = (
    ("C", "act('cancel')", "Cancel"),
    ("E", "act('expire')", "End its lease"),
)
RUN_KEYS = """\
i       send the signal for which the run waits"""
JOB_KEYS = """\
C  E    cancel the job, end its lease: it goes to the front"""


def queue_action(action: str, queue: QueueView | None) -> PendingAction | None:
    if queue is None:
        return None
    name = queue.name
    counts = queue.counts
    dead = counted(counts.dead, "dead letter")
    match action:
        case "pause":
            return PendingAction("resume" if queue.paused else "pause", name, "")
        case "set_concurrency":
            question = (
                f"How many handlers each worker of {name} runs at once; code: as its code says."
            )
            return PendingAction(action, name, question, fill="concurrency")
        case "purge":
            number = counts.waiting + counts.parked + counts.delayed
            question = f"Purge {name}: remove {jobs(number)} that wait for good?"
        case "redrive" if counts.dead:
            question = f"Redrive {name}: send {dead} back to the queue?"
        case "purge_dead" if counts.dead:
            question = f"Remove {dead} of {name} for good?"
        case "delete":
            question = f"Delete {name}, with {jobs(counts.present)} in it, running ones too?"
        case _:
            return None
    return PendingAction(action, name, question, typed=action == "delete")


def job_action(action: str, queue: str, id: str, state: str) -> PendingAction | None:
    name = one_line(id)
    dead = state == "dead"
    match action:
        case "cancel" if not dead and state not in WORDS.ended:
            question = f"Cancel job {name} of {queue}?"
        case "expire" if state == "leased":
            question = f"End the lease of job {name} of {queue}?"
        case "redrive" if dead:
            question = f"Send the dead letter {name} back to {queue}?"
        case "purge_dead" if dead:
            question = f"Remove the dead letter {name} of {queue} for good?"
        case _:
            return None
    return PendingAction(action, queue, question, {"id": id})


def worker_action(action: str, worker: WorkerState) -> PendingAction:
    name = one_line(worker.name)
    question = ""
    match action:
        case "quiet_worker" if worker.asked == "quiet":
            action = "resume_worker"
        case "stop_worker":
            question = f"Stop the program of {name}? It finishes its jobs, of all queues, and ends."
        case "fail_worker":
            question = f"Declare {name} dead in {worker.queue}? Its leased jobs go to the front."
        case _:
            pass
    return PendingAction(action, worker.queue, question, {"worker": worker.name})


class QueueTable(Pane):
    BINDINGS: ClassVar[list[BindingType]] = [("g", "app.groups", "By reason")]

    def __init__(self) -> None:
        super().__init__()
        self._views: dict[str, QueueView] = {}

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        return queue_action(action, self._views.get(key[0]) if key else None)
