"""Suspects in the process of a worker. The tests say which consumers lease meanwhile, and which
jobs are given back."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from attrs import define, field

from headrace._core.effects import Now, Wake
from headrace._core.worker.suspects import Suspects, admitted, let_go_on

LEASE = 60.0


@define(eq=False)
class One:
    """The attributes of a consumer that suspects use."""

    suspects: Suspects
    held: list[Any] = field(factory=list[Any])
    ops: Any = field(factory=lambda: SimpleNamespace(settings=SimpleNamespace(lease=LEASE)))
    leasing: Any = field(factory=lambda: SimpleNamespace(available=False, asking=0))

    def kept(self) -> list[Any]:
        return self.held

    def give_back(self, units: Sequence[Sequence[Any]]) -> None:
        """Drop these jobs, as if they went back to the front."""
        for unit in units:
            self.held = [one for one in self.held if one not in unit]


class Play:
    """Two consumers of a process, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.suspects = Suspects()
        self.a, self.b = One(self.suspects), One(self.suspects)
        self.suspects.members = [self.a, self.b]  # type: ignore[list-item]
        self.woken: list[Wake] = []

    def run(self, role: Any) -> Any:
        answer = None
        try:
            while True:
                effect = role.send(answer)
                answer = self.now if isinstance(effect, Now) else self.woken.append(effect)
        except StopIteration as end:
            return end.value

    def leases(self, one: One, *deaths: int) -> int:
        """Lease jobs with these numbers of deaths, and return how many start."""
        fresh = [SimpleNamespace(deaths=number) for number in deaths]
        one.held += fresh
        return len(self.run(admitted(one, fresh)))  # type: ignore[arg-type]

    def free(self) -> list[bool]:
        """Return which of the two may lease."""
        return [not self.suspects.bar(one) for one in (self.a, self.b)]  # type: ignore[arg-type]


def test_a_suspect_is_alone_in_its_process() -> None:
    play = Play()
    assert play.leases(play.a, 2) == 1
    assert play.free() == [False, False]
    assert play.leases(play.b, 0, 0) == 0  # of a call that was sent before
    assert not play.b.held
    assert play.b.leasing.available
    play.a.held.clear()
    play.run(let_go_on(play.a))  # type: ignore[arg-type]
    assert play.free() == [True, True]
    assert play.woken == [Wake(everyone=True)]


def test_it_waits_for_other_jobs_to_end() -> None:
    play = Play()
    assert play.leases(play.b, 0) == 1
    assert play.leases(play.a, 2) == 0
    assert play.free() == [False, False]
    play.b.held.clear()
    play.run(let_go_on(play.b))  # type: ignore[arg-type]
    assert play.woken == [Wake(owner=play.a)]
    assert play.free() == [True, False]
    assert play.leases(play.a, 2) == 1


def test_another_process_may_have_it_by_then() -> None:
    play = Play()
    assert play.leases(play.b, 0) == 1
    assert play.leases(play.a, 2) == 0
    play.b.held.clear()
    assert play.leases(play.a) == 0
    assert play.free() == [True, True]


def test_it_holds_up_others_for_a_bounded_time() -> None:
    """A suspect holds up other jobs for one lease while it waits for them. While it runs, it does
    so for one lease at first, and for longer after more deaths.
    """
    play = Play()
    assert play.leases(play.b, 0) == 1
    assert play.leases(play.a, 4) == 0
    play.now += LEASE
    play.run(let_go_on(play.b))  # type: ignore[arg-type]
    assert play.free() == [True, True]
    assert play.leases(play.a, 4) == 1  # beside the other
    for _ in range(3):
        assert play.free() == [False, False]
        play.now += LEASE
        play.run(let_go_on(play.a))  # type: ignore[arg-type]
    assert play.free() == [True, True]
    assert not play.suspects.may_come(play.b)  # type: ignore[arg-type]
    assert play.leases(play.b, 2) == 0  # of a call that was sent before: no two run together
    assert play.leases(play.b, 0) == 1
