"""Stands of the scripts that add jobs, hand them out, settle them and take them back. See
`stands`."""

from __future__ import annotations

from headrace._protocol.queue_ops import FOLLOWED
from tests.scripts.calls import TERMS
from tests.scripts.conftest import TERM, Lua
from tests.scripts.stands import (
    MANY,
    PAYLOAD,
    each_way,
    large,
    large_dead,
    large_delayed,
    large_leased,
    stand,
    with_levels,
)  # fmt: skip
from tests.support.awaiting import until
from tests.support.steps import looked_after


@stand("enqueue")
def _(lua: Lua) -> None:
    """A call's payloads are its own arguments. An id that looks like an entry is looked up as
    one."""
    for entry in large(lua):
        assert lua("enqueue", "full", entry, "", 4, "data", "x", "id", entry) == [entry, 0]
    large_delayed(lua)


@stand("enqueue_if")
def _(lua: Lua) -> None:
    """Old jobs are read. The caller asks again for jobs that do not fit."""
    fields = (6, "data", "x", "id", "i", "h", "1")
    names = [*large_delayed(lua)]
    for number in range(MANY):
        lua("enqueue", "full", f"n{number}", "", 4, "data", PAYLOAD, "id", f"n{number}")
        names.append(f"n{number}")
    for condition in ("debounce=3600000", "replace=1"):
        left = names
        while left:
            items = [x for name in left for x in (name, "", condition, *fields)]
            reply = lua("enqueue_if", 0, 0, 0, *items)
            assert reply[3] in (2, 3)  # one at least
            left = [
                name for name, outcome in zip(reply[2::2], reply[3::2], strict=True) if outcome == 6
            ]


@stand("enqueue_one")
def _(lua: Lua) -> None:
    for _ in range(MANY):
        assert lua("enqueue_one", PAYLOAD)


@stand("hand")
def _(lua: Lua) -> None:
    """The jobs for other shards are read page by page."""
    (entry,) = lua.leased("a")
    for number in range(MANY):
        name = f"00c0ffee q/b n{number}"
        lua(
            "complete",
            "",
            1,
            0,
            0,
            0,
            entry,
            ">1",
            name,
            "",
            "",
            2,
            "data",
            PAYLOAD,
            extra=outbox(lua),
        )
        (entry,) = lua.leased("a")
    come: list[str] = []
    while (page := lua("hand", 0, 1000, len(come) // 2, 0, *come))[1]:
        come = [word for row in page[1] for word in (row[0], f"4 q/b {row[0][-2:]}")]
    assert len(page[2]) == MANY


@stand("accept")
def _(lua: Lua) -> None:
    """Its jobs are its own arguments. An id that looks like an entry is looked up as one."""
    _, now, *_ = lua("accept", 0)
    for number, entry in enumerate(large(lua)):
        assert lua("accept", now, f"n{number}", entry, "", 2, "data", "x")[0] == 1


def outbox(lua: Lua) -> list[str]:
    """Return the further keys that a completion needs if a follow-up goes to another shard."""
    return [lua.key("outbox"), lua.key("outdue")]


@stand("lease")
def _(lua: Lua) -> None:
    for levels in each_way(lua):
        for fill in [an_heritage, a_lost_group, a_level][: 3 if levels else 2]:
            jobs, handed, due = fill(lua, levels), 0, 0
            while due == 0:
                known, due, taken, fresh, *_ = lua(
                    "lease", "w", 250, "", TERM, 70_000, 0, 9, 0, "old", extra=levels
                )
                assert known == 1
                handed += len(taken) + len(fresh) // 2
            assert handed == jobs
            lua.redis.delete(lua.key("jobs"), lua.key("ids"))


@stand("lease_fair")
def _(lua: Lua) -> None:
    for levels in each_way(lua):
        for fill in [an_heritage, a_lost_group, a_level][: 3 if levels else 2]:
            jobs, handed, due = fill(lua, levels), 0, 0
            lua("declare_terms", "force", "", *TERMS)
            while due == 0:
                args = ["w", 250, "", TERM, 70_000, 0, 9, 0, "old", 1, 1, 0]
                known, due, taken, *_ = lua("lease_fair", *args, extra=levels)
                assert known == 1
                handed += len(taken)
            assert handed == jobs
            lua.redis.delete(lua.key("jobs"), lua.key("ids"), lua.key("held"), lua.key("terms"))
            lua.redis.hdel(lua.key("stats"), "terms")


@stand("line_up")
def _(lua: Lua) -> None:
    lua("declare_terms", "serve", "w", *TERMS)
    large(lua)
    lua.redis.xgroup_create(lua.key("jobs"), "workers", "0")
    while lua("line_up", 1000):
        pass
    assert lua.redis.zcard(lua.key("lines")) == MANY


def an_heritage(lua: Lua, levels: list[str]) -> int:
    """Make jobs that a predecessor held, and jobs that are due."""
    large_leased(lua, "old", extra=levels)
    lua.redis.zadd(lua.key("delayed"), dict.fromkeys(large_delayed(lua, 3, extra=levels), 1))
    return MANY + 3


def a_lost_group(lua: Lua, levels: list[str]) -> int:
    """Make foreign jobs, of which some had been handed out when the group was lost."""
    looked_after(lua.redis)
    for _ in range(MANY):
        lua.redis.xadd(lua.key("jobs"), {"data": PAYLOAD})
    lua.lease("old", 3, extra=levels)
    lua.redis.xgroup_destroy(lua.key("jobs"), "workers")
    lua.redis.hdel(lua.key("stats"), "largest")
    return MANY


def a_level(lua: Lua, levels: list[str]) -> int:
    """Make jobs that rise in level as they are handed out."""
    for _ in range(MANY):
        lua("enqueue", "full", "", "", 4, "data", PAYLOAD, "headrace-priority", "2", extra=levels)
    return MANY


@stand("reclaim")
def _(lua: Lua) -> None:
    for levels in each_way(lua):
        for end in (died, overdue, idle):
            large_leased(lua, extra=levels)
            end(lua)
            until(lambda levels=levels: reclaimed(lua, levels) == MANY)
            lua.redis.delete(lua.key("jobs"), lua.key("stats"), lua.key("workers"))
            if levels:
                with_levels(lua)
        lua.redis.zadd(lua.key("delayed"), dict.fromkeys(large_delayed(lua, extra=levels), 1))
        until(
            lambda levels=levels: (
                reclaimed(lua, levels) == 0 and not lua.redis.zcard(lua.key("delayed"))
            )
        )
        if levels:
            a_level(lua, levels)
            until(
                lambda levels=levels: (
                    reclaimed(lua, levels) == 0 and lua.redis.xlen(lua.key("jobs")) == 2 * MANY
                )
            )
            lua.redis.delete(lua.key("jobs"))


def reclaimed(lua: Lua, levels: list[str]) -> int:
    """Run `reclaim` and return the number of parked jobs."""
    lua("reclaim", "v", 10_000, TERM, 500, 1, extra=levels)
    return len(lua.redis.xpending_range(lua.key("jobs"), "workers", "-", "+", 99, "parked"))


def died(lua: Lua) -> None:
    """Let the worker of the jobs die."""
    lua("beat", "v", 60_000, TERM, 1)
    lua.redis.zadd(lua.key("workers"), {"w": 1})
    looked_after(lua.redis)


def overdue(lua: Lua) -> None:
    """End leases with their own deadlines."""
    entries = [
        row["message_id"]
        for row in lua.redis.xpending_range(lua.key("jobs"), "workers", "-", "+", 99)
    ]
    lua.redis.zadd(lua.key("leases"), dict.fromkeys(entries, 1))


def idle(lua: Lua) -> None:
    """End leases with the queue's duration."""
    entries = [
        row["message_id"]
        for row in lua.redis.xpending_range(lua.key("jobs"), "workers", "-", "+", 99)
    ]
    lua.redis.xclaim(lua.key("jobs"), "workers", "w", 0, entries, idle=2 * TERM, justid=True)


@stand("release")
def _(lua: Lua) -> None:
    for levels in each_way(lua):
        for at, entry in enumerate(large_leased(lua, extra=levels)):
            assert lua("release", "w", at % 2 * 60_000, entry, 1) == [1]


@stand("retry")
def _(lua: Lua) -> None:
    for levels in each_way(lua):
        for at, entry in enumerate(large_leased(lua, extra=levels)):
            assert lua(
                "retry", "w", at % 3, 1000, entry, 1, at % 2 * "+60000", 1, "why", extra=levels
            )[0]


@stand("dead_letter")
def _(lua: Lua) -> None:
    large_dead(lua)


@stand("complete")
def _(lua: Lua) -> None:
    keys = [lua.key(part) for part in (*FOLLOWED, "jobs")]
    for entry in large_leased(lua):
        result = [lua.key(f"result:{entry}")]
        assert lua("complete", "", 1, 0, 1, 0, entry, 1, 60_000, PAYLOAD, extra=result) == [1]
    for entry in large_leased(lua):
        assert lua(
            "complete", "w", 1, 0, 0, 1, entry, 1, 1, "", "", 0, 2, "data", PAYLOAD, extra=keys
        ) == [1]


@stand("cancel")
def _(lua: Lua) -> None:
    for name in [*large_leased(lua), *large_delayed(lua), *large(lua)]:
        assert lua("cancel", name, TERM) == 1


@stand("reschedule")
def _(lua: Lua) -> None:
    for at, name in enumerate(large_delayed(lua)):
        assert lua("reschedule", name, at % 2 * "+90000") == 1
    lua.redis.flushall()
    for entry in large_leased(lua):
        assert lua("release", "w", 60_000, entry, 1) == [1]
        assert lua("reschedule", entry, "+90000") == 1


@stand("schedule")
def _(lua: Lua) -> None:
    for _ in range(3):
        lua("schedule", "s", "every 1000", "all", 2**52, 10, "data", PAYLOAD)
