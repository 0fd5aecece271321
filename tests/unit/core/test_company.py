"""Suspects alone in the process of a worker: who waits, who is given back, and what the server is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from headrace._core.effects import Now, Phase, Send, Sleep, Wake
from headrace._core.worker.company import Company, Suspect, depart, joined
from headrace._core.worker.state import ActiveJobs


class Ops:
    """The one operation that is sent: `company`, as its name and what it says."""

    def company(self, worker: str, *, beside: bool) -> tuple[str, bool]:
        """What the server is told."""
        return worker, beside


@define(eq=False)
class One:
    """What a company looks at of a consumer."""

    name: str
    company: Company
    ops: Ops = field(factory=Ops)
    jobs: ActiveJobs = field(factory=ActiveJobs)
    shared: Any = None
    phase: Phase = Phase.RUNNING
    back: list[Any] = field(factory=list[Any])

    def unsettled(self) -> bool:
        """Whether there are settlements to send."""
        return False

    def give_back(self, units: Sequence[Any]) -> None:
        """To the front."""
        self.back += units
        self.jobs.held.clear()


class Play:
    """Drives a role: what the server was told, and how long it slept."""

    def __init__(self) -> None:
        self.now, self.told = 100.0, list[tuple[str, bool]]()
        self.slept: Callable[[], object] = lambda: None

    def run(self, role: Any) -> Any:
        """Drive it to its end."""
        try:
            effect = next(role)
            while True:
                answer: Any = None
                match effect:
                    case Now():
                        answer = self.now
                    case Sleep(seconds):
                        self.now += seconds
                        self.slept()
                    case Send(ops):
                        self.told += ops
                        answer = [True]
                    case Wake():
                        pass
                    case _:
                        raise TypeError(effect)
                effect = role.send(answer)
        except StopIteration as end:
            return end.value


def pair() -> tuple[Play, Any, Any]:
    company = Company()
    company.members = members = [One("a", company), One("b", company)]  # type: ignore[list-item]
    return Play(), *members


def test_a_worker_of_one_queue_tells_nothing() -> None:
    play, a, _ = pair()
    a.company.members = [a]
    assert play.run(joined(a, ["x"], 60.0)) == ["x"]
    assert (play.told, a.company.suspect) == ([], None)


def test_a_suspect_that_happens_to_be_alone() -> None:
    """The others go on, and the server is told before they start anything."""
    play, a, b = pair()
    a.jobs.held["x"] = 1
    assert play.run(joined(a, ["x"], 0.0)) == ["x"]
    assert play.told == [("a", False)]
    assert (a.company.shuts_out(a), a.company.shuts_out(b)) == (True, False)
    b.jobs.held["y"] = 1
    play.slept = lambda: play.run(depart(a))
    assert play.run(joined(b, ["y"], None)) == ["y"]
    assert play.told == [("a", False), ("a", True)]
    assert a.company.suspect is None
    assert play.now < 101


def test_a_suspect_that_has_company() -> None:
    play, a, b = pair()
    a.jobs.held["x"] = b.jobs.held["y"] = 1
    assert play.run(joined(a, ["x"], 0.0)) == ["x"]
    assert (play.told, a.company.suspect, play.now) == ([], None, 100.0)


def test_others_make_room() -> None:
    """They lease nothing, and what is on its way to them goes back, until the suspect has ended."""
    play, a, b = pair()
    a.jobs.held["x"] = b.jobs.held["y"] = 1

    def slept() -> None:
        assert b.company.shuts_out(b)
        if play.now > 130:
            b.jobs.held.clear()

    play.slept = slept
    assert play.run(joined(a, ["x"], 60.0)) == ["x"]
    assert play.told == [("a", False)]
    assert 130 < play.now < 131
    b.jobs.held["z"] = 1
    assert play.run(joined(b, ["z"], None)) == ()
    assert b.back == [["z"]]
    assert play.run(joined(b, ["another suspect"], 60.0)) == ()
    play.run(depart(b))
    assert a.company.suspect is not None
    a.jobs.held.clear()
    play.run(depart(a))
    assert play.told == [("a", False), ("a", True)]
    assert a.company.suspect is None


def test_the_others_wait_for_a_while_only() -> None:
    """For what runs there, and then for the suspect; so is the suspect, which is not alone then."""
    play, a, b = pair()
    a.jobs.held["x"] = b.jobs.held["y"] = 1
    assert play.run(joined(a, ["x"], 60.0)) == ["x"]
    assert 160 <= play.now < 161
    assert (play.told, a.company.suspect) == ([], None)
    b.jobs.held.clear()
    assert play.run(joined(a, ["x"], 60.0)) == ["x"]
    play.now += 60
    play.run(depart(b))
    assert not b.company.shuts_out(b)


def test_a_node_out_of_reach_holds_nobody_up() -> None:
    """It can't be told that the suspect has company: the others wait for a second, once."""
    play, a, b = pair()
    a.jobs.held["x"] = 1
    assert play.run(joined(a, ["x"], 0.0)) == ["x"]
    for _ in range(2):
        assert play.run(joined(b, ["y"], None)) == ["y"]
        assert 101 <= play.now < 101.1


def test_of_two_suspects_one_waits() -> None:
    """The one that came first, if both wait for each other, goes back."""
    play, a, b = pair()
    a.jobs.held["x"] = b.jobs.held["y"] = 1
    second: list[Suspect] = []

    def slept() -> None:
        if not second:
            second.append(Suspect(b, play.now + 60))
            b.company.suspect = second[0]

    play.slept = slept
    assert play.run(joined(a, ["x"], 60.0)) == ()
    assert a.back == [["x"]]
    assert a.company.suspect is second[0]


def test_a_worker_that_stops_waits_for_nothing() -> None:
    play, a, b = pair()
    a.jobs.held["x"] = b.jobs.held["y"] = 1
    a.phase = Phase.DRAINING
    assert play.run(joined(a, ["x"], 60.0)) == ["x"]
    assert play.now == 100.0
