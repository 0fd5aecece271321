"""Nothing there, or a part of it lost: every script copes, and the two that read the group heal it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scripts.conftest import TERM, Lua

ANY = object()
NOTHING: dict[str, list[tuple[list[Any], Any]]] = {  # script: arguments, and the reply when there is nothing
    "about": [([], [ANY, 0, 0, 0])],
    "accept": [([0], [0, ANY, 0, []]), ([0, "n", "i", "", 4, "data", "a", "id", "i"], [0, ANY, 0, []])],
    "beat": [(["w", 10_000, TERM, 0], 0), (["w", 10_000, TERM, 1], 1)],
    "cancel": [(["i"], 0), (["5-0"], 0), (["99999999999999999999-0"], 0)],
    "cancel_payload": [(["a", "jobs", "-", 500], [0, "delayed", "0"]), (["a", "delayed", "0", 500], [0, "", "0"])],
    "complete": [(["", 1, 0, 0, 0, "5-0"], [0]), (["w", 2, 0, 0, 0, "5-0", "6-0", 1, 1], [0, 0])],
    "company": [(["w", 1], 0), (["w", 0], 0)],
    "close": [([], 0), (["n"], 1)],
    "counts": [([], [0] * 11)],
    "dead_letter": [(["w", 1000, "5-0", 1, "why"], [0])],
    "delete": [([], [0, 0])],
    "ended": [(["i", "5-0"], [1, 1])],
    "enqueue": [(["full", "i", "+60000", 2, "data", "a"], ["i", 1])],
    "enqueue_if": [([1, 5000, 1, "i", "+60000", "throttle=60000", 2, "data", "a"], [-1, "", "i", 1])],
    "enqueue_one": [(["a"], ANY)],
    "declare": [([0, "codec", "JSONCodec"], [1]), ([0, "codec", "BytesCodec"], [1, "codec", "JSONCodec"])],
    "expire": [(["-", 500], [0, ""]), (["-", 500, "i", "5-0"], [0, ""])],
    "fail_worker": [(["w", 500], [0, 0])],
    "find": [(["i", ""], [ANY, [], ""]), (["5-0", ""], [ANY, [], ""])],
    "lease": [
        (["w", 10, "", TERM, TERM, 0, 1000, 0], [1, -1, [], [], 1, ANY]),
        (["w", 10, "", TERM, TERM, 0, 1000, 1], [1, -1, [], [], ANY, ANY]),
        (["v", 10, "", TERM, 0, 0, 1000, 0], [0, -1, [], [], ANY, ANY]),
    ],
    "hand": [([0, 10, 0, 0], [0, [], []])],
    "handing": [([], 0)],
    "lease_of": [(["5-0"], [])],
    "leave": [(["w", 500], [0, 0])],
    "levels": [([], 0)],
    "list": [([state, "", 100], ["", ANY, []]) for state in ("running", "delayed", "blocked", "dead", "ended")],
    "measure": [([], [0] * 12)],
    "move": [
        (["-", 200], [0, "suspects:0 - 0-0"]),
        (["suspects:0 -", 200], [0, "bell:0 - 0-0"]),
        (["bell:0 -", 200], [0, "behind:0 - 0-0"]),
        (["behind:0 -", 200], [0, "new:0 - 0-0"]),
        (["new:0 -", 200], [0, "delayed 0"]),
        (["delayed 0", 200], [0, ""]),
        (["-", 200, "i", "5-0"], [0, ""]),
    ],
    "pause": [([1], 1), ([0], 1)],
    "paused": [([], 0)],
    "position": [([name, 10, ""], [-1, ""]) for name in ("i", "5-0", "99999999999999999999-0")],
    "purge": [(["-", 500], [0, ""])],
    "purge_dead": [(["-", 500], [0, ""]), (["-", 500, "a"], [0, ""])],
    "reclaim": [(["w", 10_000, TERM, 500, 0], [0, -1, 0, 0, 0, -1, -1])],
    "recur": [
        (["w", ""], [0]),
        (["w", "v1", "tasks/a"], [1]),
        (["w", "v1", "tasks/a"], [0]),
        (["v", "v2"], [1]),
    ],
    "redrive": [(["-", 500], [0, ""]), (["-", 500, "a"], [0, ""])],
    "register": [(["w.1", "w", 10_000, TERM, "", 0], [1, ""])],
    "rest": [(["w", 60_000], -1)],
    "release": [(["w", 0, "5-0", 1], [0]), (["w", 1000, "5-0", 1, "6-0", 1], [0, 0])],
    "renew": [(["w", "", 0, "5-0", 1], [0]), (["w", 5000, TERM, "5-0", 1, "6-0", 1], [0, 0])],
    "listen": [([], 1)],
    "reschedule": [(["i", "+5"], 0), (["i", ""], 0)],
    "repair": [(["jobs", "-", 500, TERM], ["", "0", *[0] * 11])],
    "result": [([], [None])],
    "retry": [(["w", 0, 1000, "5-0", 1, "", 1, "why"], [0])],
    "schedule": [(["s", "every 1000", "once", 5, 10, "data", "x"], 1)],
    "schedules": [([which, ""], [ANY, -1, [], ""]) for which in ("all", "due", "none")],
    "shards": [
        (["q", "", ""], []),
        (["", "", "", "version", "1"], ["version", "1"]),
        (["", "", "", "version", "2"], ["version", "1"]),
        (["", "1", "1", "version", "2"], ["version", "1"]),
        (["", "1", "0", "version", "2"], ["version", "2"]),
    ],
    "seal": [([0], [0]), ([1], [0])],
    "inherit": [([], 1), (["history", "5 1000"], 0)],
    "present": [(["a", "b"], [0, 0])],
    "drained": [([], [-1, *[0] * 6])],
    "wipe": [([], 0)],
    "hand_schedule": [(["s"], [])],
    "take_schedule": [(["s", 5, "x"], 1), (["s", 5, "x"], 0)],
    "tick": [(["s", "every 1000", 5, 10, 5], 0)],
    "trends": [([0, 10], [ANY, 0, ""])],
    "unschedule": [(["s"], 0)],
    "workers": [([], [ANY])],
}


@pytest.fixture
def protocol() -> int:
    """One will do here."""
    return 3


def agrees(reply: Any, expected: Any) -> bool:
    if isinstance(expected, list) and isinstance(reply, list):
        return len(reply) == len(expected) and all(agrees(r, e) for r, e in zip(reply, expected, strict=True))
    return expected is ANY or bool(reply == expected)


def test_every_script_is_here(script_names: list[str]) -> None:
    assert sorted(NOTHING) == [name for name in script_names if not name.startswith("flow_")]  # see test_flows.py


@pytest.mark.parametrize("there", ["nothing", "no group", "only a group"])
def test_every_script_copes(lua: Lua, there: str) -> None:
    """Without any key, with an empty stream that has no group, and with one that has."""
    wrong = {}
    for name, calls in NOTHING.items():
        lua.redis.flushall()
        if there != "nothing":
            lua.redis.xadd(lua.key("jobs"), {"data": "x"})
            lua.redis.xtrim(lua.key("jobs"), maxlen=0)
            lua.redis.hset(lua.key("stats"), mapping={"enqueued": 1, "added": 1, "deleted": 1})
        if there == "only a group":
            lua.redis.xgroup_create(lua.key("jobs"), "workers", "0")
        for arguments, nothing in calls:
            reply = lua(name, *arguments, extra=[lua.key("result:a")] if name == "result" else [])
            expected = nothing
            if name == "lease" and there == "only a group":
                expected = [*nothing[:4], ANY, ANY]  # healed or not
            if name == "repair" and there == "only a group":
                expected = ["", "0", 1, *[0] * 10]  # the wake stream, which is made with the group, was missing
            if name == "drained" and there != "nothing":
                expected = [-1, 0, 1, 0, 0, 1, 0]
            if name in {"counts", "measure"} and there != "nothing":
                expected = [0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, *([0] if name == "measure" else [])]
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
    """From the start of the stream: what was leased before is handed out again, or it would be lost."""
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
    """A woken reader finds its loss: without it nobody would be woken."""
    lua.leased("a")
    if lost == "the stream":
        lua.redis.delete(lua.key("wake"))
    else:
        lua.redis.xgroup_destroy(lua.key("wake"), "workers")
    assert lua.lease(woken=1)[4] == 1
    assert [group["name"] for group in lua.redis.xinfo_groups(lua.key("wake"))] == ["workers"]


@pytest.mark.parametrize("part", ["ids", "leases", "released", "stats", "workers", "registered", "wake"])
def test_a_lost_key_loses_no_job(lua: Lua, part: str) -> None:
    """Whatever a failover has lost of the rest: what is in the stream can be leased and settled."""
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
