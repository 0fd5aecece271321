"""Every script is bounded: full batches and long listings pass, page by page, within what Lua can unpack."""

from __future__ import annotations

from typing import Any

import pytest

from headrace._keys import Keys
from headrace._ops import BATCH, SIZE, Ops
from tests.scripts.conftest import TERM, Lua

PAGE = 500  # what the client asks of scripts that go page by page
MANY = 2 * PAGE + 1


@pytest.fixture
def protocol() -> int:
    """One will do here."""
    return 2


def flat(entries: list[str], *rest: Any) -> list[Any]:
    """Items of a settlement: each entry, its delivery count, and *rest*."""
    return [x for entry in entries for x in (entry, 1, *rest)]


def batch(lua: Lua, worker: str = "w", **options: Any) -> list[str]:
    """A full batch, leased; the entries."""
    entries = lua.add(*["x"] * BATCH)
    assert len(lua.lease(worker, BATCH, **options)[3]) == 2 * BATCH
    return entries


def test_the_page_is_the_client_s() -> None:
    ops = Ops(Keys.of("q"))
    paged = [ops.reclaim("w", 10), ops.leave("w"), ops.purge(), ops.purge_dead("-", []), ops.redrive("-", [])]
    paged += [ops.cancel_payload(b"x", "jobs", "-"), ops.repair()]
    assert [PAGE in op.args for op in paged] == [True] * len(paged)


def test_full_batches_with_everything(lua: Lua) -> None:
    """With ids, headers, delays, durations and fences: 1,000 jobs a call, from enqueue to the end."""
    items: list[Any] = []
    for i in range(BATCH):
        items += (f"i{i}", "+60000" if i % 2 else "", 6, "data", "x", "id", f"i{i}", "h", "1")
    assert sum(lua("enqueue", "full", *items)[1::2]) == BATCH
    lua.redis.zadd(lua.key("delayed"), {f"i{i}": 1 for i in range(1, BATCH, 2)})
    while lua("reclaim", "v", 10_000, TERM, "-", PAGE, 0)[4]:
        pass
    entries = [row[0] for row in lua.lease(limit=BATCH, duration=TERM)[2]]
    assert len(entries) == BATCH
    assert lua("renew", "w", TERM, 0, *flat(entries)) == [1] * BATCH
    assert lua("release", "w", *flat(entries)) == [1] * BATCH
    assert len(lua.lease(limit=BATCH)[2]) == BATCH
    again = [x for entry in entries for x in (entry, 2, "+60000", 1, "why")]
    assert lua("retry", "w", 0, BATCH, *again) == [1] * BATCH
    lua.redis.zadd(lua.key("delayed"), {f"i{i}": 1 for i in range(BATCH)})
    while lua("reclaim", "v", 10_000, TERM, "-", PAGE, 0)[4]:
        pass
    rows = lua.lease(limit=BATCH)[2]
    fence = [row[0] for row in rows] + [1] * BATCH
    assert lua("complete", "w", BATCH, 1, 0, 0, *fence, *[f"i{i}" for i in range(BATCH)]) == [1] * BATCH
    assert lua.counts() == {"enqueued": BATCH, "completed": BATCH}


def test_full_batches_that_fail(lua: Lua) -> None:
    entries = batch(lua)
    assert lua("complete", "w", BATCH, 0, 0, 0, *entries, *[2] * BATCH) == [0] * BATCH
    assert lua("release", "v", *flat(entries)) == [0] * BATCH
    assert lua("dead_letter", "w", 10 * BATCH, *flat(entries, "why")) == [1] * BATCH
    assert lua("complete", "", BATCH, 0, 0, 0, *entries) == [0] * BATCH
    assert lua.counts() == {"dead": BATCH, "enqueued": BATCH}


def test_full_batches_with_results_and_followers(lua: Lua) -> None:
    entries = batch(lua)
    results = [x for i in range(BATCH) for x in (i + 1, 5000, "r")]
    keys = [lua.key(f"result:{i}") for i in range(BATCH)]
    assert lua("complete", "", BATCH, 0, BATCH, 0, *entries, *results, extra=keys) == [1] * BATCH
    assert lua.redis.exists(*keys) == BATCH
    (entry,) = lua.leased("x")
    follow = [1, "", "", 0, 2, "data", "y"] * BATCH
    parts = [lua.key(part) for part in ("jobs", "wake", "ids", "delayed", "bodies", "stats", "events", "jobs")] * BATCH
    assert lua("complete", "", 1, 0, 0, BATCH, entry, *follow, extra=parts) == [1]
    assert lua.counts() == {"waiting": BATCH, "enqueued": 2 * BATCH + 1, "completed": BATCH + 1}


def test_a_batch_of_1_mib(lua: Lua) -> None:
    payload = "x" * (SIZE // BATCH)
    ids = lua.add(*[payload] * BATCH)
    _, _, _, fresh, _, _ = lua.lease(limit=BATCH)
    assert fresh == [x for entry in ids for x in (entry, payload)]


def test_a_dead_worker_with_more_than_a_page(lua: Lua) -> None:
    lua.add(*["x"] * MANY)
    lua.lease(limit=BATCH)
    lua.lease(limit=BATCH)
    lua("beat", "v", 600_000, TERM, 1)
    lua.redis.hset(lua.key("registered"), "v", f"1000 {TERM}")
    lua.redis.zadd(lua.key("workers"), {"w": 1})
    pages = [lua("reclaim", "v", 10_000, TERM, "-", PAGE, 0) for _ in range(4)]
    assert [(moved, declared, more) for moved, _, declared, more, *_ in pages] == [
        (PAGE, 1, 1), (PAGE, 0, 1), (1, 0, 0), (0, 0, 0),
    ]  # fmt: skip
    assert lua.counts() == {"parked": MANY, "enqueued": MANY}


def test_more_expired_leases_than_a_page(lua: Lua) -> None:
    lua.add(*["x"] * MANY)
    lua.lease(limit=BATCH)
    lua.lease(limit=BATCH)
    rows = lua.redis.xpending_range(lua.key("jobs"), "workers", "-", "+", MANY)
    lua.redis.xclaim(
        lua.key("jobs"), "workers", "w", 0, [row["message_id"] for row in rows], idle=2 * TERM, justid=True
    )
    cursor, moved = "-", []
    while not moved or cursor != "-":
        page = lua("reclaim", "v", 10_000, TERM, cursor, PAGE, 0)
        moved.append(page[0])
        cursor = page[1]
    assert moved == [PAGE, PAGE, 1]
    assert lua.counts() == {"parked": MANY, "enqueued": MANY}


def test_more_due_than_a_page(lua: Lua) -> None:
    for start in range(0, MANY, PAGE):
        items = [x for i in range(start, min(start + PAGE, MANY)) for x in (f"i{i}", "+60000", 2, "data", "x")]
        lua("enqueue", "full", *items)
    lua.redis.zadd(lua.key("delayed"), {f"i{i}": 1 for i in range(MANY)})
    promoted = [lua("reclaim", "v", 10_000, TERM, "-", PAGE, 0)[4] for _ in range(4)]
    assert promoted == [PAGE, PAGE, 1, 0]
    assert lua.counts() == {"waiting": MANY, "enqueued": MANY}


def test_more_to_remove_than_a_page(lua: Lua) -> None:
    """Also where jobs are parked, in the stream, and delayed."""
    batch(lua)
    assert [lua("leave", "w", PAGE) for _ in range(3)] == [[PAGE, 1], [PAGE, 1], [0, 0]]
    lua.add(*["x"] * PAGE)
    for start in (0, PAGE):
        lua("enqueue", "full", *[x for i in range(PAGE) for x in (f"i{start + i}", "+60000", 2, "data", "y")])
    gone = []
    while not gone or gone[-1]:
        gone.append(lua("purge", PAGE))
    assert sum(gone) == 2 * BATCH + PAGE
    assert max(gone) <= 3 * PAGE
    assert lua.counts() == {"enqueued": 2 * BATCH + PAGE, "deleted": 2 * BATCH + PAGE}


def test_more_of_a_payload_than_a_page(lua: Lua) -> None:
    batch(lua)
    for start in (0, PAGE):
        lua("enqueue", "full", *[x for i in range(PAGE) for x in (f"i{start + i}", "+60000", 2, "data", "x")])
    place, cursor, gone = "jobs", "-", 0
    while place:
        more, place, cursor = lua("cancel_payload", "x", place, cursor, PAGE)
        gone += more
    assert gone == 2 * BATCH
    assert lua.counts() == {"enqueued": 2 * BATCH, "cancelled": 2 * BATCH}


@pytest.mark.parametrize("name", ["redrive", "purge_dead"])
def test_more_dead_letters_than_a_page(lua: Lua, name: str) -> None:
    lua("dead_letter", "w", 10 * BATCH, *flat(batch(lua), "why"))
    cursor, pages = "-", []
    while cursor:
        more, cursor = lua(name, cursor, PAGE)
        pages.append(more)
    assert pages == [PAGE, PAGE, 0]
    assert lua.counts()["waiting" if name == "redrive" else "dead_trimmed"] == BATCH


def test_more_to_repair_than_a_page(lua: Lua) -> None:
    """Pending, in the stream, in hashes and sorted sets; what comes meanwhile does not prolong it."""
    lua.add(*["x"] * BATCH)
    items = [x for i in range(BATCH) for x in (f"i{i}", "", 4, "data", "x", "id", f"i{i}")]
    lua("enqueue", "full", *items)
    lua.lease(limit=BATCH, duration=TERM)
    entries = [entry for entry, _ in lua.redis.xrange(lua.key("jobs"))]
    lua.redis.xack(lua.key("jobs"), "workers", *entries[:BATCH:2])
    lua.redis.xdel(lua.key("jobs"), *entries[1:BATCH:2])
    lua.redis.delete(lua.key("ids"))
    for part in ("ids", "bodies", "released", "registered"):
        lua.redis.hset(lua.key(part), mapping={f"{part}{i}": "5-0" for i in range(MANY)})
    lua.redis.zadd(lua.key("delayed"), {f"hollow{i}": 9e12 for i in range(MANY)})
    place, cursor, found, pages = "jobs", "-", [0] * 11, 0
    while place:
        place, cursor, *more = lua("repair", place, cursor, PAGE, TERM)
        assert sum(more) <= 6 * PAGE
        found = [a + b for a, b in zip(found, more, strict=True)]
        pages += 1
        lua.add("meanwhile")
    half = BATCH // 2
    uncounted = MANY - half  # bodies that came in by hand, less what was taken out
    assert found == [0, half, half, MANY, MANY, MANY, BATCH, MANY, MANY, 0, uncounted]
    assert 8 * MANY // (2 * PAGE) <= pages <= 40
    assert lua("repair", "jobs", "-", 100_000, TERM) == ["", "0", *[0] * 11]


@pytest.mark.parametrize("how", ["retry", "retry, delayed", "retry, the last", "dead_letter", "lease"])
def test_a_foreign_job_with_more_headers_than_lua_can_pass_on(lua: Lua, how: str) -> None:
    """It keeps as many as it can: every way to move it would lose it otherwise."""
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
        assert lua("redrive", "-", PAGE) == [1, ""]
    ((_, fields, _, _),) = lua.lease()[2]
    assert fields[:6] == ["data", "a", "id", entry, "attempt", "1"]
    assert fields[8:] == [x for pair in list(headers.items())[:3500] for x in pair]
