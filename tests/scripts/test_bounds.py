"""Every script is bounded. Full batches and long listings pass page by page, within the limit of
Lua's unpack."""

from __future__ import annotations

from typing import Any

import pytest

from headrace._protocol import admin_ops
from headrace._protocol.keys import Keys
from headrace._protocol.limits import (
    BYTES_PER_SCRIPT,
    CLAIMS_PER_SCRIPT,
    JOBS_PER_SCRIPT,
    REWRITES_PER_SCRIPT,
)
from headrace._protocol.queue_ops import FOLLOWED, Ops
from tests.scripts.conftest import TERM, Lua
from tests.support.awaiting import until
from tests.support.steps import looked_after

PAGE = 500  # what the client asks of scripts that go page by page
MANY = 2 * PAGE + 1


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 2


def flat(entries: list[str], *rest: Any) -> list[Any]:
    """Return the items of a settlement. An item is an entry, its delivery count, and *rest*."""
    return [x for entry in entries for x in (entry, 1, *rest)]


def batch(lua: Lua, worker: str = "w", **options: Any) -> list[str]:
    """Lease a full batch and return the entries."""
    entries = lua.add(*["x"] * JOBS_PER_SCRIPT)
    assert len(lua.lease(worker, JOBS_PER_SCRIPT, **options)[3]) == 2 * JOBS_PER_SCRIPT
    return entries


def test_the_page_is_the_client_s() -> None:
    ops = Ops(Keys.of("q"))
    pages = {
        CLAIMS_PER_SCRIPT: [
            ops.reclaim("w", 10),
            ops.leave("w"),
            admin_ops.fail_worker(ops, "w"),
            admin_ops.expire(ops, "-", []),
        ],
        PAGE: [
            admin_ops.purge_dead(ops, "-", []),
            admin_ops.cancel_payload(ops, b"x", "jobs", "-"),
            admin_ops.repair(ops),
        ],
        2 * REWRITES_PER_SCRIPT: [admin_ops.purge(ops)],
        REWRITES_PER_SCRIPT: [
            admin_ops.redrive(ops, "-", []),
            admin_ops.move(ops, "q/other", "-", []),
        ],
    }
    assert [
        (page, op.name) for page, some in pages.items() for op in some if page not in op.args
    ] == []


@pytest.mark.parametrize("number", [100, MANY])
def test_blocked_jobs_are_listed_page_by_page(lua: Lua, number: int) -> None:
    """No page has more jobs than were asked for, and none is left out. Redis stores small sets in
    another form."""
    lua.redis.hset(lua.key("blocked"), mapping={f"i {i}": "x" for i in range(number)})
    names, cursor, pages = list[str](), "", 0
    while cursor or not pages:
        cursor, _, rows = lua("list", "blocked", cursor, 30)
        assert len(rows) <= 30
        names, pages = names + [row[0] for row in rows], pages + 1
        if pages == 2:
            # the last one told, at which the cursor may stand
            lua.redis.hdel(lua.key("blocked"), names[-1])
    assert set(names) == {f"i {i}" for i in range(number)}
    assert len(names) <= number + 60


def test_full_batches_with_everything(lua: Lua) -> None:
    """The jobs have ids, headers, delays, durations and fences. Each call takes 1,000 of them."""
    items: list[Any] = []
    for i in range(JOBS_PER_SCRIPT):
        items += (f"i{i}", "+60000" if i % 2 else "", 6, "data", "x", "id", f"i{i}", "h", "1")
    assert sum(lua("enqueue", "full", *items)[1::2]) == JOBS_PER_SCRIPT
    lua.redis.zadd(lua.key("delayed"), {f"i{i}": 1 for i in range(1, JOBS_PER_SCRIPT, 2)})
    while lua("reclaim", "v", 10_000, TERM, PAGE, 0)[4]:
        pass
    entries = [row[0] for row in lua.lease(limit=JOBS_PER_SCRIPT, duration=TERM)[2]]
    assert len(entries) == JOBS_PER_SCRIPT
    assert lua("renew", "w", TERM, 0, *flat(entries)) == [1] * JOBS_PER_SCRIPT
    assert lua("release", "w", 0, *flat(entries)) == [1] * JOBS_PER_SCRIPT
    assert len(lua.lease(limit=JOBS_PER_SCRIPT)[2]) == JOBS_PER_SCRIPT
    again = [x for entry in entries for x in (entry, 2, "+60000", 1, "why")]
    assert lua("retry", "w", 0, JOBS_PER_SCRIPT, *again) == [1] * JOBS_PER_SCRIPT
    lua.redis.zadd(lua.key("delayed"), {f"i{i}": 1 for i in range(JOBS_PER_SCRIPT)})
    while lua("reclaim", "v", 10_000, TERM, PAGE, 0)[4]:
        pass
    rows = lua.lease(limit=JOBS_PER_SCRIPT)[2]
    fence = [row[0] for row in rows] + [1] * JOBS_PER_SCRIPT
    assert (
        lua(
            "complete",
            "w",
            JOBS_PER_SCRIPT,
            1,
            0,
            0,
            *fence,
            *[f"i{i}" for i in range(JOBS_PER_SCRIPT)],
        )
        == [1] * JOBS_PER_SCRIPT
    )
    assert lua.counts() == {"enqueued": JOBS_PER_SCRIPT, "completed": JOBS_PER_SCRIPT}


def test_full_batches_that_fail(lua: Lua) -> None:
    entries = batch(lua)
    assert (
        lua("complete", "w", JOBS_PER_SCRIPT, 0, 0, 0, *entries, *[2] * JOBS_PER_SCRIPT)
        == [0] * JOBS_PER_SCRIPT
    )
    assert lua("release", "v", 0, *flat(entries)) == [0] * JOBS_PER_SCRIPT
    assert (
        lua("dead_letter", "w", 10 * JOBS_PER_SCRIPT, *flat(entries, "why"))
        == [1] * JOBS_PER_SCRIPT
    )
    assert lua("complete", "", JOBS_PER_SCRIPT, 0, 0, 0, *entries) == [0] * JOBS_PER_SCRIPT
    assert lua.counts() == {"dead": JOBS_PER_SCRIPT, "enqueued": JOBS_PER_SCRIPT}


def test_full_batches_with_results_and_followers(lua: Lua) -> None:
    entries = batch(lua)
    results = [x for i in range(JOBS_PER_SCRIPT) for x in (i + 1, 5000, "r")]
    keys = [lua.key(f"result:{i}") for i in range(JOBS_PER_SCRIPT)]
    assert (
        lua("complete", "", JOBS_PER_SCRIPT, 0, JOBS_PER_SCRIPT, 0, *entries, *results, extra=keys)
        == [1] * JOBS_PER_SCRIPT
    )
    assert lua.redis.exists(*keys) == JOBS_PER_SCRIPT
    (entry,) = lua.leased("x")
    follow = [1, "", "", 0, 2, "data", "y"] * JOBS_PER_SCRIPT
    parts = [lua.key(part) for part in (*FOLLOWED, "jobs")] * JOBS_PER_SCRIPT
    assert lua("complete", "", 1, 0, 0, JOBS_PER_SCRIPT, entry, *follow, extra=parts) == [1]
    assert lua.counts() == {
        "waiting": JOBS_PER_SCRIPT,
        "enqueued": 2 * JOBS_PER_SCRIPT + 1,
        "completed": JOBS_PER_SCRIPT + 1,
    }


def test_a_batch_of_1_mib(lua: Lua) -> None:
    payload = "x" * (BYTES_PER_SCRIPT // JOBS_PER_SCRIPT)
    ids = lua.add(*[payload] * JOBS_PER_SCRIPT)
    _, _, _, fresh, _, _ = lua.lease(limit=JOBS_PER_SCRIPT)
    assert fresh == [x for entry in ids for x in (entry, payload)]


def test_a_dead_worker_with_more_than_a_page(lua: Lua) -> None:
    lua.add(*["x"] * MANY)
    lua.lease(limit=JOBS_PER_SCRIPT)
    lua.lease(limit=JOBS_PER_SCRIPT)
    lua("beat", "v", 600_000, TERM, 1)
    looked_after(lua.redis)
    lua.redis.zadd(lua.key("workers"), {"w": 1})
    pages = [lua("reclaim", "v", 10_000, TERM, PAGE, 0) for _ in range(4)]
    assert [(moved, declared, more) for moved, _, declared, more, *_ in pages] == [
        (PAGE, 1, 1), (PAGE, 0, 1), (1, 0, 0), (0, 0, 0),
    ]  # fmt: skip
    assert lua.counts() == {"parked": MANY, "enqueued": MANY}


def test_more_expired_leases_than_a_page(lua: Lua) -> None:
    lua.add(*["x"] * MANY)
    lua.lease(limit=JOBS_PER_SCRIPT)
    lua.lease(limit=JOBS_PER_SCRIPT)
    rows = lua.redis.xpending_range(lua.key("jobs"), "workers", "-", "+", MANY)
    lua.redis.xclaim(
        lua.key("jobs"),
        "workers",
        "w",
        0,
        [row["message_id"] for row in rows],
        idle=2 * TERM,
        justid=True,
    )
    moved = []
    until(lambda: moved.append(lua("reclaim", "v", 10_000, TERM, PAGE, 0)[0]) or sum(moved) == MANY)
    assert max(moved) <= PAGE
    assert lua.counts() == {"parked": MANY, "enqueued": MANY}


def test_more_due_than_a_page(lua: Lua) -> None:
    for start in range(0, MANY, PAGE):
        items = [
            x
            for i in range(start, min(start + PAGE, MANY))
            for x in (f"i{i}", "+60000", 2, "data", "x")
        ]
        lua("enqueue", "full", *items)
    lua.redis.zadd(lua.key("delayed"), {f"i{i}": 1 for i in range(MANY)})
    promoted = [lua("reclaim", "v", 10_000, TERM, PAGE, 0)[4] for _ in range(6)]
    assert promoted == [PAGE // 2] * 4 + [1, 0]
    assert lua.counts() == {"waiting": MANY, "enqueued": MANY}


def test_more_to_remove_than_a_page(lua: Lua) -> None:
    """The jobs are parked, in the stream, and delayed."""
    batch(lua)
    assert [lua("leave", "w", PAGE) for _ in range(3)] == [[PAGE, 1], [PAGE, 1], [0, 0]]
    lua.add(*["x"] * PAGE)
    for start in (0, PAGE):
        lua(
            "enqueue",
            "full",
            *[x for i in range(PAGE) for x in (f"i{start + i}", "+60000", 2, "data", "y")],
        )
    gone, cursor = [], "-"
    while cursor:
        more, cursor = lua("purge", cursor, PAGE)
        gone.append(more)
    assert sum(gone) == 2 * JOBS_PER_SCRIPT + PAGE
    assert max(gone) <= 2 * PAGE  # a page of delayed ones is about as long as one asks for
    assert lua.counts() == {
        "enqueued": 2 * JOBS_PER_SCRIPT + PAGE,
        "deleted": 2 * JOBS_PER_SCRIPT + PAGE,
    }


def test_more_of_a_payload_than_a_page(lua: Lua) -> None:
    batch(lua)
    for start in (0, PAGE):
        lua(
            "enqueue",
            "full",
            *[x for i in range(PAGE) for x in (f"i{start + i}", "+60000", 2, "data", "x")],
        )
    place, cursor, gone = "jobs", "-", 0
    while place:
        more, place, cursor = lua("cancel_payload", "x", place, cursor, PAGE, TERM)
        gone += more
    assert gone == 2 * JOBS_PER_SCRIPT
    assert lua.counts() == {"enqueued": 2 * JOBS_PER_SCRIPT, "cancelled": 2 * JOBS_PER_SCRIPT}


@pytest.mark.parametrize("name", ["redrive", "purge_dead"])
def test_more_dead_letters_than_a_page(lua: Lua, name: str) -> None:
    lua("dead_letter", "w", 10 * JOBS_PER_SCRIPT, *flat(batch(lua), "why"))
    cursor, pages = "-", []
    while cursor:
        more, cursor = lua(name, cursor, PAGE, *[""] * 2 * (name == "redrive"))
        pages.append(more)
    assert pages == [PAGE, PAGE, 0]
    assert lua.counts()["waiting" if name == "redrive" else "dead_trimmed"] == JOBS_PER_SCRIPT


def test_more_to_repair_than_a_page(lua: Lua) -> None:
    """The damage is in pending lists, streams, hashes and sorted sets. New damage does not prolong
    the repair."""
    lua.add(*["x"] * JOBS_PER_SCRIPT)
    items = [
        x for i in range(JOBS_PER_SCRIPT) for x in (f"i{i}", "", 4, "data", "x", "id", f"i{i}")
    ]
    lua("enqueue", "full", *items)
    lua.lease(limit=JOBS_PER_SCRIPT, duration=TERM)
    entries = [entry for entry, _ in lua.redis.xrange(lua.key("jobs"))]
    lua.redis.xack(lua.key("jobs"), "workers", *entries[:JOBS_PER_SCRIPT:2])
    lua.redis.xdel(lua.key("jobs"), *entries[1:JOBS_PER_SCRIPT:2])
    lua.redis.delete(lua.key("ids"))
    for part in ("ids", "bodies", "released", "registered"):
        lua.redis.hset(lua.key(part), mapping={f"{part}{i}": "5-0" for i in range(MANY)})
    lua.redis.zadd(lua.key("delayed"), {f"hollow{i}": 9e12 for i in range(MANY)})
    place, cursor, found, pages = "jobs", "-", [0] * 12, 0
    while place:
        place, cursor, *more = lua("repair", place, cursor, PAGE, TERM)
        assert sum(more) <= 6 * PAGE
        found = [a + b for a, b in zip(found, more, strict=True)]
        pages += 1
        lua.add("meanwhile")
    half = JOBS_PER_SCRIPT // 2
    uncounted = MANY - half  # bodies that came in by hand, less what was taken out
    assert found == [0, half, half, MANY, MANY, MANY, JOBS_PER_SCRIPT, MANY, MANY, 0, uncounted, 0]
    assert 8 * MANY // (2 * PAGE) <= pages <= 40
    place, cursor = "jobs", "-"
    while place:
        place, cursor, *more = lua("repair", place, cursor, JOBS_PER_SCRIPT, TERM)
        assert more == [0] * 12


@pytest.mark.parametrize(
    "how", ["retry", "retry, delayed", "retry, the last", "dead_letter", "lease"]
)
def test_a_foreign_job_with_more_headers_than_lua_can_pass_on(lua: Lua, how: str) -> None:
    """The job keeps as many headers as possible. Otherwise it would be lost when it moves."""
    headers = {f"h{i}": "x" for i in range(5000)}
    lua.redis.xadd(lua.key("jobs"), {"data": "a", **headers})
    ((entry, fields, _, _),) = lua.lease()[2]
    assert len(fields) == 10_002
    if how == "lease":
        lua.redis.xclaim(lua.key("jobs"), "workers", "parked", 0, [entry], justid=True)
        assert lua.lease(most=1)[2] == []
    elif how == "dead_letter":
        assert lua("dead_letter", "w", 1000, entry, 1, "why") == [1]
    else:
        delay = "+60000" if how == "retry, delayed" else ""
        lua("retry", "w", int(how == "retry, the last"), 1000, entry, 1, delay, 1, "why")
    if how == "retry, delayed":
        lua.redis.zadd(lua.key("delayed"), {entry: 1})
    if lua.counts().get("dead"):
        assert lua("redrive", "-", PAGE, "", "") == [1, ""]
    ((_, fields, _, _),) = lua.lease()[2]
    assert fields[:6] == ["data", "a", "id", entry, "attempt", "1"]
    assert fields[8] == "headrace-reason"
    assert fields[10:] == [x for pair in list(headers.items())[:3500] for x in pair]


@pytest.mark.parametrize("verb", ["renew", "release", "dead_letter"])
def test_a_batch_in_the_middle_is_looked_up_at_once(lua: Lua, verb: str) -> None:
    """Leases of a worker are looked up in bulk, in any order, without a command for each."""
    every = [entry for _ in range(4) for entry in batch(lua)]
    some = every[-JOBS_PER_SCRIPT // 2 :][::-1]
    args = {
        "renew": (TERM, 0, *flat(some)),
        "release": (0, *flat(some)),
        "dead_letter": (1000, *flat(some, "why")),
    }
    lua.redis.config_resetstat()
    assert lua(verb, "w", *args[verb]) == [1] * len(some)
    assert lua.redis.info("commandstats")["cmdstat_xpending"]["calls"] == 1


def test_a_smaller_limit_of_dead_letters_is_reached_step_by_step(lua: Lua) -> None:
    for entry in batch(lua)[:50]:
        lua("dead_letter", "w", 1000, entry, 1, "why")
    lengths = []
    for _ in range(6):
        (entry,) = lua.leased("x")
        assert lua("dead_letter", "w", 5, entry, 1, "why") == [1]
        lengths.append(lua.redis.xlen(lua.key("dead")))
    assert lengths == [41, 32, 23, 14, 5, 5]
    assert lua.counts()["dead_trimmed"] == 51
