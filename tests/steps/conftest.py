"""Runs by scripts. Each script may touch only its declared keys, on every server of the ring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from attrs import define

from tests.scripts.conftest import TERM, Lua
from tests.support.awaiting import until
from tests.support.servers import Server

DAY = 86_400_000  # ms that no test lasts


@define
class Runs:
    """Jobs of the queue `q` that worker `w` runs, with the records of their handlers."""

    lua: Lua

    def __call__(self, name: str, *args: Any, **more: Any) -> Any:
        return self.lua(name, *args, **more)

    def begin(self, id: str = "i", *fields: str) -> str:
        """Enqueue a job, lease it and return its entry. The id '' means no id."""
        named = ["id", id] if id else []
        self.lua(
            "enqueue", "full", id, "", 2 + len(named) + len(fields), "data", "x", *named, *fields
        )
        return self.lease(ordered="headrace-key" in fields)

    def lease(self, *, ordered: bool = False) -> str:
        order = ["headrace-key", 0, 1] if ordered else []
        taken = self.lua("lease", "w", 1, "", TERM, 70_000, 3, 1000, 0, "", 1, *order)
        rows = [*(row[0] for row in taken[2]), *taken[3][:1]]
        assert len(rows) == 1, taken
        return str(rows[0])

    def leases_nothing(self) -> bool:
        taken = self.lua("lease", "w", 1, "", TERM, 70_000, 3, 1000, 0, "")
        return taken[2] == taken[3] == []

    def count(self, entry: str) -> int:
        """Return the deliveries of an entry."""
        return self.lua.holders()[entry][1]

    def step(
        self,
        entry: str,
        name: str,
        value: str = "cv",
        id: str = "i",
        took: int = 0,
        kind: str = "step",
        number: int = 0,
    ) -> int:
        """Record a step that took so many ms. The record *number* is replaced, or 0 for none."""
        count = self.count(entry)
        which = [id, "", number, name, kind, int(kind != "dying")]
        return int(self.lua("step", "w", entry, count, count, "", 0, *which, 1, took, value))

    def pass_ms(self) -> None:
        """Wait until the server's clock has another ms."""
        now = self.ms()
        until(lambda: self.ms() > now, "another ms")

    def ms(self) -> int:
        seconds, micros = self.lua.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def wait(self, entry: str, name: str, kind: str, due: str, id: str = "i") -> Any:
        return self.lua("wait", "w", entry, self.count(entry), id, "", name, kind, due, 1, "")

    def suspend(
        self, entry: str, name: str, kind: str, due: str, id: str = "i", release_key: int = 0
    ) -> Any:
        """Suspend a run, if the sleep or wait is not over."""
        count, answer = self.count(entry), self.wait(entry, name, kind, due, id)
        if answer[0] != 1:
            return answer
        return self.lua(
            "suspend", "w", entry, count, count, id, "", release_key, 0, "+5", answer[1]
        )

    def sleeps(self, id: str = "i", due: str = f"+{DAY}") -> str:
        """Make a run that has one step and sleeps, and return its entry."""
        entry = self.begin(id)
        assert self.step(entry, "charge", id=id or entry) == 1
        assert self.suspend(entry, "nap", "sleep", due, id=id or entry)[0] == 1
        return entry

    def waits(self, id: str = "i", due: str = "") -> str:
        """Make a run that has one step and waits for the signal `go`, and return its entry."""
        entry = self.begin(id)
        assert self.step(entry, "charge", id=id or entry) == 1
        assert self.suspend(entry, "go", "wait", due, id=id or entry)[0] == 1
        return entry

    def suspended(self, kind: str, id: str = "i") -> str:
        """Make a run that sleeps or waits, and return its entry."""
        return self.sleeps(id) if kind == "sleep" else self.waits(id)

    def dies(self, id: str = "i", steps: str = "abc") -> None:
        """Make a dead letter of a run with these steps."""
        entry = self.begin(id)
        for name in steps:
            self.step(entry, name, id=id or entry)
        assert self.lua("dead_letter", "w", 1000, entry, self.count(entry), "why") == [1]

    def names(self, id: str = "i", queue: str = "q") -> list[str]:
        return [row[0] for row in self.lua("steps", id, "")]

    def letter(self, id: str = "i") -> str:
        """Return the name of the run of the newest dead letter of this id."""
        letters = self.lua.redis.xrevrange(self.lua.key("dead"))
        return next(("\n" + str(entry) for entry, fields in letters if fields["id"] == id), "none")

    def counts(self) -> dict[str, int]:
        """Return the number of jobs in each state. The law of conservation must hold."""
        counts = self.lua.counts()
        gone = {"completed", "cancelled", "deleted", "dead_trimmed"}
        here = {name: number for name, number in counts.items() if name not in {"enqueued", *gone}}
        assert counts.get("enqueued", 0) == sum(here.values()) + sum(
            counts.get(name, 0) for name in gone
        )
        return here

    def left(self) -> list[str]:
        """Return the existing keys of runs."""
        return [
            part
            for part in ("steps", "asleep", "leases", "released")
            if self.lua.redis.exists(self.lua.key(part))
        ]


@pytest.fixture
def runs(server: Server) -> Iterator[Runs]:
    """Runs on every server of the ring."""
    lua = Lua(server, 3)
    yield Runs(lua)
    lua.close()
