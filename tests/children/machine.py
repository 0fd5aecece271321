"""A random walk of parents and children, beside a model of each parent's records."""

from __future__ import annotations

import random
from typing import Any

from attrs import define, field

from tests.steps.conftest import DAY, Runs

OPEN = (None, "")
FAR = "headrace:{far}:q:"
"""The prefix of a queue in another slot. Parents take their own queue for it, and so do their
children."""
COUNT = """
local more = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))[5]
return type(more) == 'table' and more.children or 0
"""


def as_bytes(word: str) -> bytes:
    return word.encode("utf-8", "surrogateescape")


@define(eq=False)
class Parent:
    id: str
    state: str = "held"  # held, parked, dead, or waiting
    entry: str = ""
    letter: str = ""
    records: dict[str, tuple[Any, str]] = field(factory=dict[str, tuple[Any, str]])
    numbers: dict[str, int] = field(factory=dict[str, int])
    awaited: set[str] = field(factory=set[str])
    every: bool = False
    due: bool = False  # it must go on
    ends: int = 0  # of its children since it was parked, also of some that it does not wait for
    wanted: int = 0  # ends until it may go on

    @property
    def early(self) -> bool:
        """Whether it may go on: enough children have ended, or one has failed."""
        return self.ends >= self.wanted

    @property
    def open(self) -> list[str]:
        return [name for name, record in self.records.items() if record == OPEN]


@define
class Machine:
    runs: Runs
    rng: random.Random
    parents: dict[str, Parent] = field(factory=dict[str, Parent])
    alive: dict[str, tuple[str, str]] = field(factory=dict[str, tuple[str, str]])
    """The children that have not ended, with the parent and the name of each."""
    made: int = 0
    far: dict[str, list[Any]] = field(factory=dict[str, list[Any]])
    """The arguments by which each child in another slot is started."""
    owed: dict[str, tuple[str, str]] = field(factory=dict[str, tuple[str, str]])
    """Children in another slot that are recorded, and not started."""
    unheard: dict[str, tuple[str, str, Any]] = field(factory=dict[str, tuple[str, str, Any]])
    """The ends of such children that their parents have not learned."""

    def walk(self, steps: int) -> None:
        often = {self.start: 4, self.park: 4, self.end: 5, self.lease: 3, self.fetch: 3}
        moves = [self.begin, self.bury, self.redrive, self.cancel, self.adopt, *often]
        weights = [often.get(move, 1) for move in moves]
        for _ in range(steps):
            self.rng.choices(moves, weights)[0]()
            self.check()

    # -- moves -------------------------------------------------------------------------------------

    def begin(self) -> None:
        if len(self.parents) == 4:
            return
        self.made += 1
        own = f"p{self.made}"
        self.runs("enqueue", "full", own, "", 4, "data", "x", "id", own)
        self.parents[own] = Parent(own, "waiting")
        self.lease()

    def start(self) -> None:
        parent = self._any("held")
        for _ in range(self.rng.randint(1, 3)):
            if parent is not None and len(parent.open) < 5:
                begin = self._start_afar if self.rng.random() < 0.4 else self._start
                begin(parent)

    def _start(self, parent: Parent) -> None:
        self.made += 1
        name = f"c{self.made}"
        child = f"{parent.id}/{name}"
        args = ["w", parent.entry, self.runs.count(parent.entry), parent.id, "", name, 1]
        answer = self.runs("child", *args, "", 0, "data", "x", "id", child)
        assert answer[0] == 1, answer
        assert answer[2] == child
        parent.records[name] = OPEN
        parent.numbers[name] = answer[1]
        self.alive[child] = (parent.id, name)

    def _start_afar(self, parent: Parent) -> None:
        """Record a child in another slot. It is started now, or later."""
        self.made += 1
        name = f"c{self.made}"
        child = f"{parent.id}/{name}"
        args = ["w", parent.entry, self.runs.count(parent.entry), parent.id, "", name, 1, 0]
        answer = self.runs("child_away", *args, FAR, child)
        assert answer[::2] == [1, 1], answer
        parent.records[name] = OPEN
        parent.numbers[name] = answer[1]
        self.far[child] = [FAR, parent.id, "", answer[1], 1, child, "", "data", "x", "id", child]
        self.owed[child] = (parent.id, name)
        if self.rng.random() < 0.7:
            self._adopt(child)

    def adopt(self) -> None:
        """Start a child once more, whatever has become of it."""
        if self.far:
            self._adopt(self.rng.choice(sorted(self.far)))

    def _adopt(self, child: str) -> None:
        assert self.runs("adopt", *self.far[child]) == (child in self.owed), child
        if child in self.owed:
            self.alive[child] = self.owed.pop(child)

    def fetch(self) -> None:
        """Let parents learn how children in another slot have ended. The reports may stay there,
        and come again."""
        key = self.runs.lua.key(f"reports:{FAR}")
        known: list[str] = []
        while (found := self.runs("reports", 2, *known, extra=[key]))[1:]:
            self.runs("learn", FAR, found[0], *map(as_bytes, found[1:]))
            known = found[1::2]
            for child in known:
                owner, name, told = self.unheard.pop(child, ("", "", None))
                if (parent := self.parents.get(owner)) is not None:
                    self._told(parent, name, told)
            if self.rng.random() < 0.3:
                break

    def park(self) -> None:
        parent = self._any("held")
        if parent is None or not parent.records:
            return
        most = len(parent.records)
        names = self.rng.sample(
            [*parent.records], self.rng.choice([most, self.rng.randint(1, most)])
        )
        every = self.rng.random() < 0.5
        count = self.runs.count(parent.entry)
        answer = self.runs(
            "suspend", "w", parent.entry, count, count, parent.id, "", 0, int(every), "+5",
            *(parent.numbers[name] for name in names),
        )  # fmt: skip
        assert answer[0] == 1, answer
        ended = [parent.records[name] for name in names if parent.records[name] != OPEN]
        failed = any(outcome != "completed" for _, outcome in ended)
        parent.state = "parked"
        parent.awaited = {*names} & {*parent.open}
        parent.every = every
        parent.due = failed or not parent.awaited or bool(ended and not every)
        parent.ends = 0
        parent.wanted = len(parent.awaited) if every else 1
        away = any(f"{parent.id}/{name}" in self.far for name in parent.awaited)
        assert (answer[1] != -1) == (parent.due or away), (answer, parent)

    def end(self) -> None:
        if not self.alive:
            return
        child = self.rng.choice(sorted(self.alive))
        how = self.rng.choice(["result", "none", "cancel", "bury"])
        redis, key = self.runs.lua.redis, self.runs.lua.key
        if how == "bury":
            self.lease()
        entry = redis.hget(key("ids"), child)
        told: tuple[Any, str] = (None, "cancelled")
        if how == "cancel":
            assert self.runs("cancel", child, DAY) == 1
        elif how == "bury":
            args = [1000, entry, self.runs.count(entry), f"why of {child}"]
            assert self.runs("dead_letter", "w", *args) == [1]
            told = (f"why of {child}", "dead")
        elif how == "none":
            assert self.runs("complete", "", 1, 1, 0, 0, entry, child) == [1]
            told = (None, "completed")
        else:
            result = [1, DAY, f"result of {child}"]
            extra = [key(f"result:{child}")]
            args = ["", 1, 1, 1, 0, entry, child, *result]
            assert self.runs("complete", *args, extra=extra) == [1]
            told = (f"result of {child}", "completed")
        owner, name = self.alive.pop(child)
        if child in self.far:
            self.unheard[child] = (owner, name, told)
        elif (parent := self.parents.get(owner)) is not None:
            self._told(parent, name, told)

    def lease(self) -> None:
        """Lease all that waits. Of the parked parents those come that must."""
        taken = self.runs.lua.lease(limit=100)
        came = {row[0] for row in taken[2]} | {*taken[3][::2]}
        for parent in self.parents.values():
            if parent.state == "parked":
                assert parent.entry in came or not parent.due, parent
                assert parent.entry not in came or parent.due or parent.early, parent
                parent.state = "held" if parent.entry in came else "parked"
            elif parent.state == "waiting":
                parent.entry = self.runs.lua.redis.hget(self.runs.lua.key("ids"), parent.id)
                assert parent.entry in came
                parent.state = "held"

    def bury(self) -> None:
        parent = self._any("held")
        if parent is not None:
            count = self.runs.count(parent.entry)
            assert self.runs("dead_letter", "w", 1000, parent.entry, count, "why") == [1]
            parent.state = "dead"
            parent.letter = self.runs.letter(parent.id)

    def redrive(self) -> None:
        parent = self._any("dead")
        if parent is None:
            return
        assert self.runs("redrive", "-", 100, "", "", parent.id)[0] == 1
        parent.state = "waiting"

    def cancel(self) -> None:
        if not self.parents or self.rng.random() < 0.5:
            return
        parent = self.rng.choice([*self.parents.values()])
        if parent.state == "dead":
            return
        answer = self.runs("cancel", parent.id, DAY)
        children: list[str] = []
        for name in parent.open:
            child = f"{parent.id}/{name}"
            children += (FAR if child in self.far else self.runs.lua.key(""), child)
        assert answer == ([1, *children] if children else 1)
        del self.parents[parent.id]

    # -- the model ---------------------------------------------------------------------------------

    def check(self) -> None:
        redis, key = self.runs.lua.redis, self.runs.lua.key
        assert {*redis.hkeys(key("links"))} == {*self.alive}
        assert {*redis.hkeys(key(f"reports:{FAR}"))} >= {*self.unheard}
        dead = {parent.id for parent in self.parents.values() if parent.state == "dead"}
        aliases = {name.partition("\ta")[0] for name in redis.hkeys(key("steps")) if "\ta" in name}
        assert aliases <= dead
        for parent in self.parents.values():
            known_as = parent.letter if parent.state == "dead" else parent.id
            rows = self.runs("steps", known_as, "")
            assert {row[0]: (row[5], row[12]) for row in rows} == parent.records, parent
            if parent.records:
                assert redis.eval(COUNT, 1, key("steps"), known_as) == len(parent.open), parent

    def _any(self, state: str) -> Parent | None:
        some = [parent for parent in self.parents.values() if parent.state == state]
        return self.rng.choice(some) if some else None

    def _told(self, parent: Parent, name: str, told: tuple[Any, str]) -> None:
        parent.records[name] = told
        if parent.state != "parked":
            return
        failed = told[1] != "completed"
        parent.ends += 9 if failed else 1
        if name in parent.awaited:
            parent.awaited.discard(name)
            parent.due |= failed or not parent.every or not parent.awaited
