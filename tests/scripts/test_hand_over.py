"""The scripts that move jobs to other shards. Each step may be left out, repeated or late."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.scripts.conftest import Lua
from tests.scripts.stands_jobs import outbox
from tests.scripts.test_out_of_memory import FULL
from tests.support.awaiting import until

NAME = "00c0ffee q/b n1"
CLOSING = "4 q/b n1"
DAY_MS = 86_400_000


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 2


def hand_over(lua: Lua, *names: str, delay: str = "", **options: Any) -> Any:
    """Complete a job that has follow-ups for another shard."""
    (entry,) = lua.leased("a")
    away = [word for name in names for word in (">1", name, "i", delay, 4, "data", "b", "id", "i")]
    return lua("complete", "", 1, 0, 0, 0, entry, *away, extra=outbox(lua), **options)


def now_of(lua: Lua) -> int:
    taken, now, *_ = lua("accept", 0)
    assert taken == 0
    return int(now)


def accept(lua: Lua, nonce: str = "n1", since: int | None = None, name: str = "i") -> int:
    since = now_of(lua) if since is None else since
    return int(lua("accept", since, nonce, name, "", 4, "data", "b", "id", name)[0])


def test_a_completion_leaves_jobs_in_the_outbox(lua: Lua) -> None:
    assert hand_over(lua, NAME, delay="+60000") == [1]
    assert lua.counts() == {"enqueued": 1, "completed": 1}  # they count where they come
    assert lua("handing") == 1
    following, ((name, job, due, fields),), closing = lua("hand", 0, 10, 0, 0)
    assert (following, name, job, fields, closing) == (0, NAME, "i", ["data", "b", "id", "i"], [])
    assert 0 < int(due.removeprefix("@")) - now_of(lua) <= 60_000
    assert lua("hand", 0, 10, 0, 0)[1] == [[name, job, due, fields]]  # and there it stays


def test_only_the_winner_leaves_them(lua: Lua) -> None:
    (entry,) = lua.leased("a")
    arguments = ["", 1, 0, 0, 0, entry, ">1", NAME, "", "", 2, "data", "b"]
    assert lua("complete", *arguments, call=1, extra=outbox(lua)) == [1]
    assert lua("complete", *arguments, call=1, extra=outbox(lua)) == [1]  # its reply was lost
    assert lua(
        "complete", *[*arguments[:7], NAME[:-1] + "2", *arguments[8:]], extra=outbox(lua)
    ) == [0]
    assert lua("handing") == 1


@pytest.mark.parametrize("part", ["outbox", "outdue"])
def test_keys_of_another_type(lua: Lua, part: str) -> None:
    """No script stops halfway."""
    lua.redis.set(lua.key(part), "mine")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        hand_over(lua, NAME)
    assert lua.counts() == {"leased": 1, "enqueued": 1}


def test_what_has_come_is_closing_until_it_is_over(lua: Lua) -> None:
    hand_over(lua, NAME)
    for _ in range(2):  # also a second time
        assert lua("hand", 0, 10, 1, 0, NAME, CLOSING) == [0, [], [CLOSING]]
        assert lua("handing") == 0
    assert lua("hand", 0, 10, 0, 0, "4", 0, 9) == [0, [], []]  # a shard that is left alone
    for _ in range(2):
        assert lua("hand", 0, 10, 0, 1, CLOSING) == [0, [], []]
    assert not lua.redis.exists(lua.key("outbox"), lua.key("outdue"), lua.key("closing"))


def test_a_job_comes_once(lua: Lua) -> None:
    """A repeated message adds no job, even after the job has gone and its id is free or taken by
    another."""
    assert [accept(lua), accept(lua)] == [1, 1]
    assert lua.counts() == {"waiting": 1, "enqueued": 1}
    (entry,) = [row[0] for row in lua.lease()[2]]
    assert lua("complete", "", 1, 1, 0, 0, entry, "i") == [1]
    assert accept(lua) == 1
    assert lua.counts() == {"enqueued": 1, "completed": 1}
    assert accept(lua, "n2") == 1  # another one of that id
    assert lua.counts() == {"waiting": 1, "enqueued": 2, "completed": 1}
    assert accept(lua, "n3") == 1
    assert lua.counts() == {"waiting": 1, "enqueued": 2, "completed": 1}


def test_what_was_read_too_long_ago_is_not_taken(lua: Lua) -> None:
    """The job may have come meanwhile, and its record may be gone."""
    now = now_of(lua)
    assert accept(lua, since=now - 300_000 - 1) == 0
    assert accept(lua, since=0) == 0
    assert lua.counts() == {}
    assert accept(lua, since=now - 290_000) == 1
    assert lua.counts() == {"waiting": 1, "enqueued": 1}


def test_what_has_come_is_forgotten_later(lua: Lua) -> None:
    """The record of a closed message ends after ten minutes, and of an open one after 30 days."""
    accept(lua)
    accept(lua, "n2", name="j")
    now, handed = now_of(lua), lua.key("handed")
    kept = dict(lua.redis.zrange(handed, 0, -1, withscores=True))
    assert all(29 * DAY_MS < score - now <= 30 * DAY_MS for score in kept.values())
    assert 29 * DAY_MS < lua.redis.pttl(handed) <= 30 * DAY_MS
    assert lua("close", "n1", "n9") == 2
    kept = dict(lua.redis.zrange(handed, 0, -1, withscores=True))
    assert kept.keys() == {"n1", "n2"}
    assert 590_000 < kept["n1"] - now <= 610_000
    lua.redis.zadd(handed, {"n1": 5})  # it was long ago
    lua("close", "n2")
    assert lua.redis.zrange(handed, 0, -1) == ["n2"]
    assert 0 < lua.redis.pttl(handed) <= 600_000
    lua.redis.zadd(handed, {"n2": now_of(lua) + 5})
    lua("close", "n2")
    lua.redis.pexpire(handed, 1)
    until(lambda: not lua.redis.exists(handed))


def test_a_late_repetition_does_not_open_it_again(lua: Lua) -> None:
    accept(lua)
    lua("close", "n1")
    accept(lua)
    assert lua.redis.zscore(lua.key("handed"), "n1") - now_of(lua) <= 600_000


def test_levels_and_delays(lua: Lua) -> None:
    streams = [lua.key(f"jobs:{level}") for level in range(1, 10)]
    items = [
        "n1",
        "",
        "",
        4,
        "data",
        "a",
        "headrace-priority",
        "2",
        "n2",
        "late",
        "@9000000000000",
        4,
        "data",
        "b",
        "id",
        "late",
    ]
    assert lua("accept", now_of(lua), *items, "n3", "", "", 2, "data", "c", extra=streams)[0] == 1
    assert (lua.redis.xlen(streams[1]), lua.redis.xlen(lua.key("jobs"))) == (1, 1)
    assert lua.redis.hget(lua.key("stats"), "levels") == "2"
    assert lua.redis.zrange(lua.key("delayed"), 0, -1, withscores=True) == [("late", 9e12)]
    assert lua("counts", extra=streams[:2])[:7] == [2, 0, 0, 1, 0, 0, 3]
    assert lua("accept", now_of(lua), *items, extra=streams)[0] == 1
    assert lua("counts", extra=streams[:2])[:7] == [2, 0, 0, 1, 0, 0, 3]


def test_a_thousand_at_once(lua: Lua) -> None:
    names = [f"00c0ffee q/b n{n:04}" for n in range(1_500)]
    for part in (names[:1_000], names[1_000:]):
        hand_over(lua, *part)
    following, first, _ = lua("hand", 0, 1000, 0, 0)
    assert following == 1_000
    assert lua("hand", following, 1000, 0, 0)[0] == 0
    items = [word for name, *_ in first for word in (name[-5:], "", "", 2, "data", "x")]
    for _ in range(2):
        assert lua("accept", now_of(lua), *items)[0] == 1
    assert lua.counts() == {"waiting": 1_000, "enqueued": 1_002, "completed": 2}
    come = [word for name, *_ in first for word in (name, f"4 q/b {name[-5:]}")]
    following, rest, closing = lua("hand", 0, 1000, 1000, 0, *come)
    assert (following, len(rest), len(closing)) == (0, 500, 1_000)
    assert lua("close", *(name[-5:] for name in closing)) == 1_000
    assert len(lua("hand", 0, 1000, 0, 1000, *closing)[1]) == 500
    assert lua.redis.zcard(lua.key("closing")) == 0


def test_shards_that_are_left_alone_hold_up_no_others(lua: Lua) -> None:
    hand_over(lua, *(f"00c0ffee q/b n{n:04}" for n in range(1_000)))
    hand_over(lua, "ff000000 q/b far")
    following, rows, _ = lua("hand", 0, 1000, 0, 0, "0", 0, 0x7FFFFFFF)
    assert (following, rows) == (1_000, [])
    following, rows, _ = lua("hand", following, 1000, 0, 0, "0", 0, 0x7FFFFFFF)
    assert (following, [row[0] for row in rows]) == (0, ["ff000000 q/b far"])


def test_foreign_commands_do_not_stop_it(lua: Lua) -> None:
    hand_over(lua, NAME)
    lua.redis.zadd(lua.key("outdue"), {"nothing": 1, "no job": 2, "no list": 3})
    lua.redis.hset(lua.key("outbox"), mapping={"no job": "\xff", "no list": b"\x01"})
    assert [row[0] for row in lua("hand", 0, 10, 0, 0)[1]] == [NAME]
    assert (
        lua.redis.zrange(lua.key("outdue"), 0, -1) == lua.redis.hkeys(lua.key("outbox")) == [NAME]
    )


@pytest.mark.parametrize("number", [3, 1_200])
def test_what_has_lost_its_time_goes(lua: Lua, number: int) -> None:
    """All such records go, page by page."""
    names = [f"00c0ffee q/b n{n:04}" for n in range(number)]
    for start in range(0, number, 1_000):
        hand_over(lua, *names[start : start + 1_000])
    lua.redis.delete(lua.key("outdue"))
    found: list[str] = []
    while rows := lua("hand", 0, 1000, 0, 0)[1]:
        found += [row[0] for row in rows]
        come = [word for row in rows for word in (row[0], f"4 q/b {row[0][-5:]}")]
        lua("hand", 1, 1, len(rows), 0, *come)
    assert sorted(found) == names


def test_a_full_server(lua: Lua) -> None:
    """Completing and freeing work. A script that would add jobs is refused as a whole."""
    hand_over(lua, NAME)
    (entry,) = lua.leased("a")
    since = now_of(lua)
    accept(lua, "there", name="j")
    lua.redis.config_set("maxmemory-policy", "noeviction")
    lua.redis.config_set("maxmemory", 1)
    try:
        before = lua.state()
        with pytest.raises(Exception, match=FULL):
            accept(lua, since=since)
        assert lua.state() == before
        assert accept(lua, "there", since=since) == 1
        away = [">1", "00c0ffee q/b n2", "", "", 2, "data", "b"]
        assert lua("complete", "", 1, 0, 0, 0, entry, *away, extra=outbox(lua), call=1) == [1]
        assert lua("hand", 0, 10, 1, 0, NAME, CLOSING)[2] == [CLOSING]
        assert lua("close", "there") == 1
        assert lua("hand", 0, 10, 0, 1, CLOSING)[2] == []
    finally:
        lua.redis.config_set("maxmemory", 0)
    assert lua("handing") == 1


def test_delete_empties_the_outbox(lua: Lua) -> None:
    hand_over(lua, NAME)
    lua.add("a")
    assert lua("delete") == [2, 0]
    assert not lua.redis.exists(lua.key("outbox"), lua.key("outdue"))
    assert lua.counts() == {"enqueued": 2, "completed": 1, "deleted": 1}
