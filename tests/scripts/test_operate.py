"""Scripts for operators and named workers. The tests check replies, pages and a full server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.scripts.conftest import TERM, Lua
from tests.support.awaiting import until
from tests.support.facts import each

TIMEOUT = 10_000


@pytest.fixture
def lua(lua: Lua) -> Iterator[Lua]:
    """Restore the memory limit afterwards for the tests that share this server."""
    yield lua
    lua.redis.config_set("maxmemory", 0)


def fill(lua: Lua) -> None:
    lua.redis.config_set("maxmemory-policy", "noeviction")
    lua.redis.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        lua.redis.set("more", "x")


def test_pause(lua: Lua) -> None:
    (a,) = lua.add("a")
    assert [lua("paused"), lua("pause", 1), lua("pause", 1), lua("paused")] == [0, 1, 0, 1]
    assert lua.lease()[:4] == [2, -1, [], []]
    assert lua.redis.xlen(lua.key("wake")) == 0
    assert [lua("pause", 0), lua("pause", 0), lua("paused")] == [1, 0, 0]
    assert lua.redis.xlen(lua.key("wake")) == 8
    assert lua.lease()[3] == [a, "a"]


def test_all_of_it_on_a_full_server(lua: Lua) -> None:
    """An operator needs it most then."""
    a, b, _ = lua.add("a", "b", "c")
    lua("beat", "w.1", 600_000, TERM, 1)
    lua.lease("w.1", 1, ttl=0)
    lua.lease("v", 1)
    fill(lua)
    assert lua("pause", 1, call=1) == 1
    assert lua("pause", 0, call=2) == 1
    assert lua("expire", "-", 500, b, call=3) == [1, ""]
    assert lua("fail_worker", "w", 500, call=4) == [1, 0]
    assert lua.holders() == {a: ("parked", 1), b: ("parked", 1)}
    assert lua("register", "w.2", "w", TIMEOUT, TERM, "", 0) == [1, ""]
    assert lua("move", "-", 200, a, call=5) == [1, ""]
    assert lua.counts() == {"parked": 1, "waiting": 1, "enqueued": 3, "deleted": 1}


def test_pages(lua: Lua) -> None:
    entries = lua.leased("a", "b", "c")
    assert lua("expire", "-", 2) == [2, f"({entries[1]} {entries[2]}"]
    assert lua("expire", f"({entries[1]} {entries[2]}", 2) == [1, ""]
    lua.lease("w.1")
    assert lua("fail_worker", "w", 2) == [2, 1]
    assert lua("fail_worker", "w", 2) == [1, 0]
    assert lua("move", "-", 2) == [2, f"parked:0 ({entries[1]} {entries[2]}"]
    assert lua("move", f"parked:0 ({entries[1]} {entries[2]}", 2) == [
        1,
        f"suspects:0 - {entries[2]}",
    ]
    assert lua.redis.hgetall("headrace:{q}:q/to:stats") == {"enqueued": "3", "added": "3"}


def test_what_rang_moves_before_what_is_new_and_was_not_delivered(lua: Lua) -> None:
    lua.lease()  # makes the group
    a, b = lua.add("a", "b")
    lua.redis.xreadgroup("workers", "idle", {lua.key("jobs"): ">"}, count=1)
    assert lua("move", "idle:0 -", 200) == [1, f"behind:0 - {b}"]
    assert lua("move", "behind:0 -", 200) == [0, f"new:0 - {b}"]
    assert lua("move", "new:0 -", 200) == [1, "delayed 0"]
    moved = [fields for _, fields in lua.redis.xrange("headrace:{q}:q/to:jobs")]
    assert [(fields["id"], fields["enq"]) for fields in moved] == [
        (a, a.split("-")[0]),
        (b, b.split("-")[0]),
    ]
    assert not any("attempt" in fields for fields in moved)
    assert lua.holders() == {}


def test_what_was_leased_between_two_pages_stays(lua: Lua) -> None:
    a, b, c = lua.add("a", "b", "c")
    cursor = f"new:0 ({a}"
    lua.lease(limit=2)
    assert lua("move", cursor, 200) == [1, "delayed 0"]
    assert set(lua.holders()) == {a, b}
    assert [fields["id"] for _, fields in lua.redis.xrange("headrace:{q}:q/to:jobs")] == [c]


def test_register(lua: Lua) -> None:
    """The name is free, perhaps taken, dead without a heartbeat, or alive."""
    assert lua("register", "w.1", "w", TIMEOUT, TERM, "", 0) == [1, ""]
    assert lua("register", "w.1", "w", TIMEOUT, TERM, "", 0) == [1, ""]  # its reply was lost
    lua("beat", "w.x.1", TIMEOUT, TERM, 1)  # those have other names
    lua("beat", "w", TIMEOUT, TERM, 1)
    verdict, seen = lua("register", "w.2", "w", TIMEOUT, TERM, "", 0)
    assert (verdict, seen.split()[0]) == (0, "w.1")
    assert lua("register", "w.2", "w", TIMEOUT, TERM, seen, 0) == [0, seen]
    assert "w.2" not in lua.redis.zrange(lua.key("workers"), 0, -1)
    assert lua("register", "w.2", "w", TIMEOUT, TERM, seen, 1) == [1, "w.1"]
    verdict, seen = lua("register", "w.3", "w", TIMEOUT, TERM, "", 0)
    lua("beat", "w.2", 2 * TIMEOUT, TERM, 0)
    assert lua("register", "w.3", "w", TIMEOUT, TERM, seen, 1) == [-1, "w.2"]
    lua.redis.zadd(lua.key("workers"), {"w.1": 0, "w.2": 0})  # declared dead: nobody's heir
    assert lua("register", "w.3", "w", TIMEOUT, TERM, "", 0) == [1, ""]


def test_rest(lua: Lua) -> None:
    """An idle worker is registered for long. All workers see one that is not idle."""
    workers = lua.key("workers")
    lua("beat", "w", TIMEOUT, TERM, 1)
    assert lua("rest", "w", 600_000) == 0  # there is no group that could say what is leased
    lua.redis.xgroup_create(lua.key("jobs"), "workers", "0", mkstream=True)
    assert lua("rest", "w", 600_000) == 2
    assert 570_000 < lua.redis.zscore(workers, "w") - 1000 * lua.redis.time()[0] < 602_000
    assert lua.redis.zscore(workers, "w") % 1 == 0.5
    lua("beat", "v", TIMEOUT, TERM, 1)
    assert [lua("rest", worker, 600_000) for worker in ("w", "v", "w")] == [1, 2, 2]
    lua("beat", "v", TIMEOUT, TERM, 0)
    assert lua.redis.zscore(workers, "v") % 1 == 0
    assert lua("rest", "w", 600_000) == 1
    lua("rest", "v", 600_000)
    lua.redis.zadd(workers, {"v": 5.5})  # it rested for too long
    assert lua("rest", "w", 600_000) == 1
    lua.redis.zadd(workers, {"v": 0})
    assert lua("rest", "v", 600_000) == -1
    assert lua.redis.zscore(workers, "v") == 0


@each(
    "what",
    ["leased", "parked", "delayed", "scheduled", "paused", "trends", "outbox"],
    empty=True,
)
def test_none_rests_where_something_is_to_be_done(lua: Lua, what: str) -> None:
    lua("beat", "w", 600_000, TERM, 1)
    (entry,) = lua.leased("a")
    if what != "leased":
        lua("release", "w", 0, entry, 1)
    if what not in ("leased", "parked"):
        lua.lease()
        lua("complete", "", 1, 0, 0, 0, entry)
        assert lua("rest", "w", 600_000) == 2
    if what == "delayed":
        lua("enqueue", "full", "i", "+60000", 4, "data", "a", "id", "i")
    elif what == "scheduled":
        lua("schedule", "s", "every 1000", "once", 5, 10, "data", "x")
    elif what == "paused":
        lua("pause", 1)
    elif what == "trends":
        lua.redis.hset(lua.key("stats"), "trends", 1)
    elif what == "outbox":
        lua.redis.hset(lua.key("outbox"), "n", "x")
    before = lua.state()
    assert lua("rest", "w", 700_000) == 0
    assert lua.state() == before


def test_a_worker_tells_of_itself_as_it_begins_and_as_it_rests_no_more(lua: Lua) -> None:
    """The message goes to all workers on the channel for lost jobs. Other heartbeats send none."""
    with lua.redis.pubsub() as heard:
        heard.subscribe(lua.key("control"))
        assert heard.get_message(timeout=5.0)["type"] == "subscribe"

        def told() -> list[str]:
            lua.redis.publish(lua.key("control"), "end")
            found: list[str] = []
            while (message := heard.get_message(timeout=5.0)["data"]) != "end":
                found.append(message)
            return found

        lua("beat", "w", TIMEOUT, TERM, 1)
        assert told() == ["active"]
        lua("beat", "w", TIMEOUT, TERM, 0)
        lua("beat", "w", TIMEOUT, TERM, 1)
        assert told() == []
        lua("register", "x.1", "x", TIMEOUT, TERM, "", 0)
        assert told() == ["active"]
        lua.lease("plain", ttl=5000)
        assert told() == ["active"]
        lua.lease("plain", ttl=5000)
        lua("rest", "w", 600_000)
        assert told() == []
        lua("beat", "w", TIMEOUT, TERM, 0)
        assert told() == ["active"]


def test_an_heir(lua: Lua) -> None:
    """The jobs of its predecessor go to the front, and the heir leases the first of them."""
    lua("beat", "w.1", TIMEOUT, TERM, 1)
    lua("beat", "w.2", TIMEOUT, TERM, 1)
    (parked,) = lua.leased("parked")
    mine = lua.add("a", "b", "c")
    lua.lease("w.1", ttl=0, duration=1)
    lua("release", "w", 0, parked, 1)
    lua.add("new")
    arguments = ["w.2", 2, "", TERM, 0, 0, 1000, 0, "w.1"]
    taken = lua("lease", *arguments, call=1)[2]
    assert [(row[0], row[2], row[3]) for row in taken] == [(parked, 2, 1), (mine[0], 2, 0)]
    after = lua.state()
    assert lua("lease", *arguments, call=1)[2] == taken
    assert lua.state() == after
    assert [lua.holders()[entry] for entry in mine[1:]] == [("parked", 1)] * 2
    assert lua.redis.zrange(lua.key("leases"), 0, -1) == []
    assert lua("beat", "w.1", TIMEOUT, TERM, 0) == 0
    assert lua.redis.hexists(lua.key("registered"), "w.1") is False
    rest = lua("lease", *[*arguments[:1], 10, *arguments[2:]])
    assert [row[0] for row in rest[2][:2]] == mine[1:]
    assert len(rest[2]) + len(rest[3]) // 2 == 3


def test_an_heir_of_poison(lua: Lua) -> None:
    lua("beat", "w.1", TIMEOUT, TERM, 1)
    lua("beat", "w.2", TIMEOUT, TERM, 1)
    (entry,) = lua.add("a")
    lua.redis.hset(lua.key("deaths"), entry, 19)
    lua.lease("w.1", ttl=0)
    assert lua("lease", "w.2", 10, "", TERM, 0, 1, 1000, 0, "w.1", 1)[2] == []
    assert lua.counts() == {"dead": 1, "enqueued": 1}


def test_a_paused_queue_has_no_heirs_yet(lua: Lua) -> None:
    lua("beat", "w.2", TIMEOUT, TERM, 1)
    (a,) = lua.leased("a", worker="w.1")
    lua("pause", 1)
    assert lua("lease", "w.2", 10, "", TERM, 0, 0, 1000, 0, "w.1")[0] == 2
    assert lua.holders() == {a: ("w.1", 1)}
    assert lua.redis.zscore(lua.key("workers"), "w.1") > 0


def test_a_shard_that_is_gone_keeps_no_turns(lua: Lua) -> None:
    """The turns belonged to jobs that foreign commands removed."""
    lua.redis.hset(lua.key("stats"), "shards", 2)
    lua.redis.hset(lua.key("turns"), "ka", "1-0")
    lua.redis.zadd(lua.key("behind"), {"1:aa1a0": 0})
    assert lua("wipe") == 1
    assert list(lua.redis.scan_iter("*")) == [lua.key("stats")]


def test_kinds_of_a_worker_are_told_once(lua: Lua) -> None:
    """The kinds come with the first heartbeat or with a registration. Late heartbeats keep them,
    and a new registration replaces them.
    """
    lua("beat", "v.1", 1, TERM, 1, "a", "b c")
    until(lambda: lua("beat", "v.1", 1, TERM, 0) == 1 and lua("workers")[0] > lua("workers")[1][1])
    lua("beat", "v.1", TIMEOUT, TERM, 0)
    lua("register", "w.1", "w", TIMEOUT, TERM, "", 0, "")
    lua("beat", "x.1", TIMEOUT, TERM, 1)
    _, *rows = lua("workers")
    assert {row[0]: row[7:] for row in rows} == {"v.1": [["a", "b c"]], "w.1": [[""]], "x.1": []}
    assert {row[0] for row in rows if row[2] > 0} == {"v.1", "w.1", "x.1"}
    lua("beat", "v.1", TIMEOUT, TERM, 1, "d")
    assert ["a", "b c"] in [row[7] for row in lua("workers")[1:] if row[0] == "v.1"]  # sent twice
