"""Missing keys. Every script works with some or all keys lost. The two scripts that read the group
restore it."""

from __future__ import annotations

import pytest

from headrace._protocol.script import names
from tests.scripts.calls import ANY, CALLS, agrees
from tests.scripts.conftest import TERM, Lua


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 3


def test_every_script_is_here() -> None:
    assert sorted(CALLS) == names()
    assert [
        name for name, calls in CALLS.items() if not calls.nothing and not name.startswith("flow_")
    ] == []


@pytest.mark.parametrize("there", ["nothing", "no group", "only a group"])
def test_every_script_copes(lua: Lua, there: str) -> None:
    """Each script runs without any key, with an empty stream without a group, and with one that has
    a group."""
    wrong = {}
    for name, calls in CALLS.items():
        lua.redis.flushall()
        if there != "nothing":
            lua.redis.xadd(lua.key("jobs"), {"data": "x"})
            lua.redis.xtrim(lua.key("jobs"), maxlen=0)
            lua.redis.hset(lua.key("stats"), mapping={"enqueued": 1, "added": 1, "deleted": 1})
        if there == "only a group":
            lua.redis.xgroup_create(lua.key("jobs"), "workers", "0")
        for arguments, nothing in calls.nothing:
            reply = lua(name, *arguments, extra=[lua.key("result:a")] if name == "result" else [])
            expected = nothing
            if name in {"lease", "lease_fair"} and there == "only a group":
                expected = [*nothing[:4], ANY, ANY, *nothing[6:]]  # healed or not
            if name == "repair" and there == "only a group":
                # the wake stream, which is made with the group, was missing
                expected = ["", "0", 1, *[0] * 11]
            if name == "drained" and there != "nothing":
                expected = [-1, 0, 1, 0, 0, 1, 0]
            if name in {"counts", "measure"} and there != "nothing":
                more = [0, 0, [ANY, 0, 0, 0]] if name == "measure" else []
                expected = [0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, *more]
            if not agrees(reply, expected):
                wrong[name, str(arguments)] = reply
    assert wrong == {}


def test_listing_what_waits_when_there_is_nothing(lua: Lua) -> None:
    cursor, pages = "", 0
    while pages == 0 or cursor:
        cursor, _, rows = lua("list", "waiting", cursor, 100)
        assert rows == []
        pages += 1
    assert pages == 1  # what is empty takes no call of its own


def test_lease_heals_the_group(lua: Lua) -> None:
    """The group begins at the start of the stream, so leased jobs are delivered again and not
    lost."""
    a, b = lua.add("a", "b")
    lua.lease(limit=1)
    lua.redis.xgroup_destroy(lua.key("jobs"), "workers")
    known, _, _, fresh, healed, _ = lua.lease("v")
    assert (known, healed, fresh) == (1, 1, [a, "a", b, "b"])
    (group,) = lua.redis.xinfo_groups(lua.key("jobs"))
    assert (group["name"], group["pending"]) == ("workers", 2)
    assert [group["name"] for group in lua.redis.xinfo_groups(lua.key("wake"))] == ["workers"]


def test_reclaim_heals_the_group(lua: Lua) -> None:
    (a,) = lua.add("a")
    lua("reclaim", "w", 10_000, TERM, 500, 0)
    assert lua.lease()[3:5] == [[a, "a"], 0]


@pytest.mark.parametrize("lost", ["the stream", "its group"])
def test_lease_heals_the_wake_stream(lua: Lua, lost: str) -> None:
    """A reader that was woken restores the stream. Without it no reader would be woken."""
    lua.leased("a")
    if lost == "the stream":
        lua.redis.delete(lua.key("wake"))
    else:
        lua.redis.xgroup_destroy(lua.key("wake"), "workers")
    assert lua.lease(woken=1)[4] == 1
    assert [group["name"] for group in lua.redis.xinfo_groups(lua.key("wake"))] == ["workers"]


@pytest.mark.parametrize(
    "part", ["ids", "leases", "released", "stats", "workers", "registered", "wake"]
)
def test_a_lost_key_loses_no_job(lua: Lua, part: str) -> None:
    """Jobs in the stream can be leased and settled, whichever other key a failover has lost."""
    lua("enqueue", "full", "i", "", 4, "data", "a", "id", "i", "", "", 2, "data", "b")
    lua.lease(duration=5000, limit=1)
    (released,) = lua.holders()
    lua("release", "w", 0, released, 1)
    lua.redis.delete(lua.key(part))
    assert lua.lease()[0] == 1
    (a, (_, count)), (b, _) = lua.holders().items()
    assert lua("retry", "w", 0, 1000, a, count, "", 1, "why") == [1]
    assert lua("complete", "", 1, 0, 0, 0, b) == [1]
    assert [row[1][1] for row in lua.lease()[2]] == ["a"]
