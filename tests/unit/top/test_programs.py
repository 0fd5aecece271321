"""Registrations of workers are grouped by program. A program is a machine and a process, or else a
name."""

from __future__ import annotations

from headrace._model.state import WorkerFacts, WorkerState
from headrace.console.programs import Program, programs, versions_of


def one(
    name: str,
    queue: str,
    pid: int = 0,
    *,
    host: str = "h",
    alive: bool = True,
    asked: str = "",
    at: float = 1.0,
) -> WorkerState:
    """Return a registration, with facts if there is a *pid*."""
    facts = WorkerFacts(host, f"1.{pid}", "3.11", pid, int(at), 4, at) if pid else None
    return WorkerState(name, queue, 10.0 - pid, 20.0, 1, alive, facts, asked)


def test_a_program_is_one_in_all_its_queues_and_shards() -> None:
    found = programs(
        [
            one("w.1", "a", 7),
            one("w.2", "b", 7, at=3.0),
            one("w.3", "b", 7, at=2.0),
            one("v.1", "a", 7),
        ]
    )
    assert [(of.name, len(of.members)) for of in found] == [("v", 1), ("w", 3)]
    program = found[1]
    assert list(program.queues) == ["a", "b"]
    # shards share their slots
    assert (program.running, program.slots, program.since) == (3, 8, 3.0)
    assert program.facts is not None
    assert program.facts.memory == 3  # the newest


def test_processes_machines_and_registrations_without_facts_are_told_apart() -> None:
    workers = [
        one("w.1", "a", 7),
        one("w.2", "a", 8),
        one("w.3", "a", 7, host="g"),
        one("w.4", "a"),
        one("w.5", "a"),
    ]
    assert len(programs(workers)) == 5
    assert len(programs([one("w.4", "a"), one("w.4", "b")])) == 1
    assert programs([one("queue-1", "a")])[0].name == "queue-1"


def test_a_program_lives_as_long_as_a_registration() -> None:
    """The states come from its live registrations, each once. A dead program has one state."""
    dead = one("w.1", "a", 7, alive=False)
    assert not Program("w", [dead]).alive
    assert Program("w", [dead, dead]).states == [dead]
    quiet = [
        one(f"w.{queue}", queue, 7, asked=asked)
        for queue, asked in (("b", "quiet"), ("c", ""), ("d", "quiet"))
    ]
    program = Program("w", [dead, *quiet])
    assert program.alive
    assert [of.queue for of in program.states] == ["b", "c"]


def test_versions_of_live_programs() -> None:
    found = programs(
        [one("w.1", "a", 7), one("v.1", "a", 7), one("u.1", "a", 9, alive=False), one("t.1", "a")]
    )
    assert versions_of(found) == ["1.7"]
