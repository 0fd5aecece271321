"""Slots by scripts. Each script may touch only its declared keys, on every server of the ring."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import define, field

from tests.scripts.conftest import TERM, Lua
from tests.support.servers import Server

STRUCTURE = "fair=tenant limits=tenant, rates="


def lp(value: str) -> str:
    """Return a length and a value as features/limits.lua writes them."""
    return f"{len(value)}:{value}"


def place(entry: str) -> str:
    """Return the place of an entry as features/limits.lua writes it."""
    return "".join(chr(96 + len(number)) + number for number in entry.split("-"))


@define
class Slots:
    """Jobs of the queue `q` that workers lease, with slots of the limit `tenant` and of the whole
    queue."""

    lua: Lua
    terms: dict[str, Any] = field(
        factory=lambda: {"path": ["tenant"], "keys": [], "limits": [["tenant", 5], ["", 50]]}
    )

    def __call__(self, name: str, *args: Any, **more: Any) -> Any:
        return self.lua(name, *args, **more)

    def add(self, *tenants: str, ids: bool = True, fields: tuple[str, ...] = ()) -> None:
        """Enqueue a job of each tenant, with ids such as `ada0` and `bob1`."""
        for number, tenant in enumerate(tenants):
            name = f"{tenant}{number}" if ids else ""
            own = ["data", tenant, *(["id", name] if ids else []), "tenant", tenant, *fields]
            self.lua("enqueue", "full", name, "", len(own), *own)

    def lease(self, limit: int = 10, worker: str = "w", *, ordered: bool = False) -> list[str]:
        self.lua(
            "declare_terms",
            "force",
            "",
            STRUCTURE,
            json.dumps({**self.terms, "rates": [], "words": {}}),
        )
        order = ["headrace-key", 0, 1] if ordered else []
        args = ["", TERM, 70_000, 3, 1000, 0, "", 1, 1, 0, *order]
        return [row[0] for row in self.lua("lease_fair", worker, limit, *args)[2]]

    def leased(
        self, *tenants: str, worker: str = "w", ids: bool = True, fields: tuple[str, ...] = ()
    ) -> list[str]:
        """Enqueue a job of each tenant, lease them, and return the entries in order."""
        self.add(*tenants, ids=ids, fields=fields)
        entries = self.lease(len(tenants), worker, ordered="headrace-key" in fields)
        assert len(entries) == len(tenants)
        return sorted(entries)

    def take(self, entry: str, tenant: str) -> None:
        """Write a slot by hand."""
        line, slot = "0" + lp(tenant), lp("tenant") + lp(tenant)
        self.lua.redis.hset(
            self.lua.key("held"), entry, f"1700000000000.000 1000 1 {lp(line)}{lp(slot)}"
        )
        self.lua.redis.zadd(self.lua.key("slots"), {f"{slot} {place(entry)}": 0})

    def stop(self, tenant: str) -> None:
        """Let a line of this tenant wait for a slot."""
        self.lua.redis.zadd(
            self.lua.key("stopped"), {f"{lp('tenant')}{lp(tenant)} 0{1:016}0{lp(tenant)}": 0}
        )

    def held(self) -> list[str]:
        return sorted(self.lua.redis.hkeys(self.lua.key("held")))

    def of(self, tenant: str) -> int:
        """Return the number of slots that a tenant has."""
        slot = lp("tenant") + lp(tenant)
        return int(self.lua.redis.zlexcount(self.lua.key("slots"), f"[{slot} ", f"({slot}!"))

    def settled(self) -> list[str]:
        """Return the texts of the ended leases without the times."""
        return [
            text for text in self.lua.redis.lrange(self.lua.key("settled"), 0, -1) if text[0] != "@"
        ]

    def tokens(self) -> int:
        return int(self.lua.redis.xlen(self.lua.key("wake")))

    def law(self) -> None:
        """Check that held entries are the leased jobs, and that each value has as many slots as
        leased jobs."""
        leased = {
            entry: row[0] for entry, row in self.lua.holders().items() if not reserved(row[0])
        }
        assert self.held() == sorted(leased)
        counts = self.lua.counts()
        assert counts.get("held", 0) == counts.get("leased", 0) == len(leased)
        members = self.lua.redis.zrange(self.lua.key("slots"), 0, -1)
        assert sorted(member.rpartition(" ")[2] for member in members) == sorted(map(place, leased))

    def lines(self) -> list[str]:
        """Return the places in lines."""
        return list(self.lua.redis.zrange(self.lua.key("lines"), 0, -1))

    def lined(self) -> dict[str, str]:
        return {
            entry: row[0]
            for entry, row in self.lua.holders().items()
            if row[0] in {"parked:new", "parked:front"}
        }


def reserved(owner: str) -> bool:
    """Tell whether a consumer is no worker."""
    return owner in {"idle", "limited", "behind", "parked"} or owner.startswith("parked:")


@pytest.fixture
def slots(server: Server) -> Iterator[Slots]:
    """Jobs and slots on every server of the ring."""
    lua = Lua(server, 3)
    yield Slots(lua)
    lua.close()
