"""A key of another type, somebody else's: a script that meets one has done nothing yet, or at least lost no job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.scripts.conftest import TERM, Lua, declared, dumps, restore

CALLS: dict[str, Callable[[str], list[Any]]] = {  # arguments, given an entry that "w" has leased
    "enqueue, plain": lambda _: ["plain", "a"],
    "enqueue_if": lambda _: [
        9,
        5000,
        1,
        "new",
        "+60000",
        "throttle=60000",
        2,
        "data",
        "b",
        "i",
        "",
        "replace=1",
        2,
        "data",
        "b",
    ],
    "enqueue_one": lambda _: ["a"],
    "enqueue": lambda _: [
        "full",
        "",
        "",
        2,
        "data",
        "a",
        "j",
        "",
        4,
        "data",
        "b",
        "id",
        "j",
        "k",
        "+6",
        2,
        "data",
        "c",
    ],
    "complete": lambda entry: ["", 1, 1, 0, 0, entry, "i"],
    "complete, fenced": lambda entry: ["w", 1, 1, 0, 0, entry, 1, "i"],
    "accept": lambda _: [4e12, "n", "new", "+60000", 4, "data", "b", "id", "new", "m", "", "", 2, "data", "c"],
    "hand": lambda _: [0, 10, 1, 1, "00c0ffee q/b m", "4 q/b m", "4 q/b l"],
    "close": lambda _: ["m"],
    "release": lambda entry: ["w", 0, entry, 1],
    "release, after a pause": lambda entry: ["w", 60000, entry, 1],
    "retry": lambda entry: ["w", 0, 1000, entry, 1, "", 1, "why"],
    "retry, delayed": lambda entry: ["w", 0, 1000, entry, 1, "+60000", 1, "why"],
    "retry, the last": lambda entry: ["w", 1, 1000, entry, 1, "", 1, "why"],
    "dead_letter": lambda entry: ["w", 1000, entry, 1, "why"],
    "renew": lambda entry: ["w", "", 0, entry, 1],
    "leave": lambda _: ["w", 500],
    "cancel": lambda _: ["i"],
    "cancel, delayed": lambda _: ["late"],
    "cancel_payload": lambda _: ["a", "jobs", "-", 500],
    "cancel_payload, delayed": lambda _: ["z", "delayed", "0", 500],
    "purge": lambda _: ["-", 500],
    "purge_dead": lambda _: ["-", 500],
    "redrive": lambda _: ["-", 500],
    "delete": lambda _: [],
    "listen": lambda _: [],
    "recur": lambda _: ["w", "v1", "tasks/a"],
    "reschedule": lambda _: ["late", "+5000"],
    "reschedule, now": lambda _: ["late", ""],
    "schedule": lambda _: ["s", "every 2000", "once", 5, 10, "data", "x"],
    "unschedule": lambda _: ["s"],
    "tick": lambda _: ["s", "every 1000", 5, 1005, 5],
    "pause": lambda _: [1],
    "expire": lambda _: ["-", 500],
    "fail_worker": lambda _: ["w", 500],
    "move": lambda _: ["-", 200],
    "move, waiting": lambda _: ["new:0 -", 200],
    "move, delayed": lambda _: ["delayed 0", 200],
    "repair": lambda _: ["jobs", "-", 500, TERM],
}


@pytest.fixture
def protocol() -> int:
    """One will do here."""
    return 2


def prepare(lua: Lua) -> str:
    """Jobs in every state; the entry of one that is leased, with an id of its own and a duration."""
    lua("enqueue", "full", "i", "", 4, "data", "a", "id", "i", "late", "+60000", 4, "data", "z", "id", "late")
    lua.lease(limit=1, duration=TERM)
    (entry,) = lua.holders()
    parked, dead, _ = lua.add("p", "d", "n")
    lua.lease(limit=2)
    lua("release", "w", 0, parked, 1)
    lua("dead_letter", "w", 1000, dead, 1, "why")
    lua("schedule", "s", "every 1000", "once", 5, 10, "data", "x")
    return entry


@pytest.mark.parametrize("case", CALLS)
def test_nothing_is_half_done(lua: Lua, case: str) -> None:
    name = case.split(",", maxsplit=1)[0]
    refused = []
    arguments = CALLS[case](prepare(lua))
    prepared = dumps(lua.redis)
    for part in declared(name):
        restore(lua.redis, prepared)
        lua.redis.set(lua.key(f"lane:{part}" if part == "lane" else part), "mine")
        try:
            before = lua.state()
        except redis.ResponseError:  # the jobs themselves
            before = {}
        try:
            lua(name, *arguments, call=1, lane=part)
        except redis.ResponseError as error:
            refused.append(part)
            assert "WRONGTYPE" in str(error) or part == "lane", part  # noqa: PT017
            assert not before or lua.state() == before, part
    assert refused, "which keys does it use?"


def test_what_a_lease_buries_is_not_lost(lua: Lua) -> None:
    """Jobs without attempts left stay where they are as long as the dead letters have no place to go."""
    (entry,) = lua.leased("a")
    lua("release", "w", 0, entry, 1)
    lua.redis.delete(lua.key("released"))
    lua.redis.set(lua.key("dead"), "mine")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        lua.lease(most=1)
    assert list(lua.holders()) == [entry]
    lua.redis.delete(lua.key("dead"))
    lua("release", "w", 0, entry, 2)
    assert lua.lease(most=1)[2] == []
    assert lua.counts() == {"dead": 1, "enqueued": 1}
