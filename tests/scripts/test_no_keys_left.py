"""The keys of a queue are bounded by its jobs. A drained queue keeps only its streams and
counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace._protocol import limits
from headrace._protocol.script import script
from tests.scripts.conftest import TERM, Lua
from tests.support.awaiting import until
from tests.support.steps import looked_after

LANES = 7
LANE = 600_000  # ms that the record of a call is kept


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 2


class Story:
    """A queue in use, by calls that are recorded."""

    def __init__(self, lua: Lua) -> None:
        self.lua, self.calls = lua, 0

    def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        return self.lua(name, *arguments, call=self.calls, lane=f"{self.calls % LANES}", **options)

    def lease(self, worker: str, **options: Any) -> list[tuple[str, int, str]]:
        """Lease all jobs and return the entry, count and id of each."""
        self.calls += 1
        reply = self.lua.lease(worker, 1000, call=self.calls, **options)
        rows = [
            (row[0], row[2], dict(zip(row[1][::2], row[1][1::2], strict=True)).get("id", ""))
            for row in reply[2]
        ]
        return rows + [(entry, 1, "") for entry in reply[3][::2]]

    def settle(
        self, name: str, worker: str, rows: list[tuple[str, int, str]], *rest: Any, first: Any = ()
    ) -> None:
        """Settle all of *rows*, which are the worker's."""
        items = [x for entry, count, _ in rows for x in (entry, count, *rest)]
        assert all(self(name, worker, *first, *items)), name

    def complete(self, rows: list[tuple[str, int, str]]) -> None:
        entries, names = [row[0] for row in rows], [row[2] for row in rows]
        results = [x for i in range(len(rows)) for x in (i + 1, 60_000, "r")]
        keys = [self.lua.key(f"result:{entry}") for entry in entries]
        reply = self(
            "complete", "", len(rows), 1, len(rows), 0, *entries, *names, *results, extra=keys
        )
        assert reply == [1] * len(rows)


def use(story: Story, jobs: int) -> None:
    """Move each of *jobs* through every state that it can leave again, and complete all."""
    items: list[Any] = []
    for i in range(jobs):
        delay = "+60000" if i % 3 == 0 else ""
        items += (f"i{i}", delay, 6, "data", "x", "id", f"i{i}", "h", str(i))
    story("enqueue", "full", *items)
    story("enqueue", "plain", *["y"] * (jobs - 1))
    story("enqueue_one", "y")
    lua = story.lua
    for key in lua.redis.zrange(lua.key("delayed"), 0, -1):
        lua.redis.zadd(lua.key("delayed"), {key: 1})
    rows = story.lease("w", duration=TERM)
    assert len(rows) == 2 * jobs
    story.settle("renew", "w", rows, first=[2 * TERM, 0])
    story.settle("release", "w", rows[::2], first=[0])
    story.settle("retry", "w", rows[1::4], "", 1, "why", first=[0, 1000])
    story.settle("retry", "w", rows[3::4], "+60000", 0, "", first=[0, 1000])
    for key in lua.redis.zrange(lua.key("delayed"), 0, -1):
        lua.redis.zadd(lua.key("delayed"), {key: 1})
    story.settle("dead_letter", "v", story.lease("v"), "why", first=[1000])
    assert story("redrive", "-", 1000, "", "")[0] == 2 * jobs
    lua.redis.xreadgroup("workers", "idle", {lua.key("jobs"): ">", lua.key("wake"): ">"}, count=3)
    rows = story.lease("dying", duration=TERM, woken=1)
    assert len(rows) == 2 * jobs
    lua("beat", "peer", 600_000, TERM, 1)
    looked_after(lua.redis)
    lua.redis.zadd(lua.key("workers"), {"dying": 1})
    assert story("reclaim", "peer", 10_000, TERM, 1000, 0)[0] == 2 * jobs
    story.complete(story.lease("peer"))
    assert lua.counts() == {
        name: number for name, number in lua.counts().items() if name in ("enqueued", "completed")
    }


def leave(lua: Lua) -> None:
    for worker in ("w", "v", "peer"):
        assert lua("leave", worker, 500) == [0, 0]


def test_a_drained_queue_keeps_its_streams_and_counters(lua: Lua) -> None:
    story = Story(lua)
    use(story, 60)
    leave(lua)
    keys = {key.removeprefix(lua.key("")) for key in lua.redis.scan_iter(count=1000)}
    expiring = {key for key in keys if key.startswith(("lane:", "result:"))}
    assert keys - expiring == {"jobs", "wake", "dead", "stats"}
    assert lua.redis.xlen(lua.key("jobs")) == lua.redis.xlen(lua.key("dead")) == 0
    # leasing has one of its own
    assert len([key for key in expiring if key.startswith("lane:")]) == LANES + 1
    for key in expiring:
        assert 0 < lua.redis.pttl(lua.key(key)) <= (LANE if key.startswith("lane:") else 60_000), (
            key
        )


def test_no_worker_is_left_behind(lua: Lua) -> None:
    use(Story(lua), 10)
    leave(lua)
    consumers = {
        consumer["name"] for consumer in lua.redis.xinfo_consumers(lua.key("jobs"), "workers")
    }
    assert consumers <= {"parked", "idle"}
    assert lua("workers")[1:] == []
    assert lua.holders() == {}


def test_a_second_use_leaves_no_more_than_the_first(lua: Lua) -> None:
    """No key grows with the number of jobs that have been there."""
    story = Story(lua)
    sizes = []
    for _ in range(3):
        use(story, 20)
        leave(lua)
        found = lua.state()
        streams = {part: len(found[part][0]) for part in ("jobs", "wake")}
        fields = {name for name, _ in _pairs(found["stats"])}
        pending = lua.redis.xpending(lua.key("wake"), "workers")["pending"]
        sizes.append((sorted(found.keys() - _results(found)), streams["jobs"], fields))
        assert streams["wake"] <= 16
        assert pending <= 32  # what woke a reader is taken by the next lease
    assert sizes[0] == sizes[1] == sizes[2]


def _pairs(hash_reply: Any) -> list[tuple[Any, Any]]:
    flat = (
        list(hash_reply.items())
        if isinstance(hash_reply, dict)
        else list(zip(*[iter(hash_reply)] * 2, strict=True))
    )
    return [(name, value) for name, value in flat]


def _results(found: dict[str, Any]) -> set[str]:
    return {part for part in found if part.startswith("result:")}


@pytest.mark.parametrize("end", ["cancel", "cancel_payload", "purge", "delete"])
def test_every_other_end_leaves_nothing_either(lua: Lua, end: str) -> None:
    """The jobs are waiting, parked, leased, retried and delayed, with ids and durations."""
    names = [f"i{i}" for i in range(6)]
    items = [
        x
        for i, name in enumerate(names)
        for x in (name, "+60000" if i > 3 else "", 4, "data", "x", "id", name)
    ]
    lua("enqueue", "full", *items)
    rows = [row[0] for row in lua.lease(limit=3, duration=TERM)[2]]
    lua("release", "w", 0, rows[0], 1)
    lua("retry", "w", 0, 1000, rows[1], 1, "", 0, "")
    if end == "purge":
        lua("complete", "", 1, 1, 0, 0, rows[2], names[2])
        lua("purge", "-", 500)
    elif end == "delete":
        lua("delete")
    elif end == "cancel":
        assert [lua("cancel", name, TERM) for name in names] == [1] * len(names)
    else:
        lua("cancel_payload", "x", "jobs", "-", 500, TERM)
        lua("cancel_payload", "x", "delayed", "0", 500, TERM)
    lua("leave", "w", 500)
    told = {"cancels"} if end.startswith("cancel") else set[str]()  # for the time of a result
    assert set(lua.state()) == {"jobs", "wake", "stats", "holders", *told}
    assert not told or 0 < lua.redis.pttl(lua.key("cancels")) <= TERM
    assert lua.redis.xlen(lua.key("jobs")) == 0
    assert lua.holders() == {}


def test_a_lane_keeps_its_last_call_only(lua: Lua) -> None:
    """The record of a lane is bounded in number and in time."""
    for call in range(20):
        lua("enqueue", "plain", *["x"] * 10, call=call)
    assert lua.redis.keys(lua.key("lane:*")) == [lua.key("lane:l")]
    assert lua.redis.strlen(lua.key("lane:l")) < 400
    assert 0 < lua.redis.pttl(lua.key("lane:l")) <= LANE


def test_a_lease_is_recorded_without_its_payloads(lua: Lua) -> None:
    lua.add("x" * 100_000)
    lua.lease(call=1)
    assert lua.redis.strlen(lua.key("lane:l")) < 200


def test_the_wake_stream_is_short(lua: Lua) -> None:
    for _ in range(5):
        entries = lua.add(*["x"] * 20)
        lua.lease()
        items = [x for entry in entries for x in (entry, lua.holders()[entry][1])]
        assert lua("release", "w", 0, *items) == [1] * 20
        lua.lease("v")
        lua("complete", "", 20, 0, 0, 0, *entries)
    assert lua.redis.xlen(lua.key("wake")) <= 16


def test_the_record_outlives_every_repetition() -> None:
    """A call is repeated for a bounded time, and its record lives longer."""
    assert f"'PX', '{LANE}')" in script("enqueue").source
    assert limits.RETRY_BUDGET_S * 1000 * 10 < LANE


LEAVE: dict[str, Callable[[Lua, str], Any]] = {
    "cancel": lambda lua, entry: lua("cancel", "i", TERM),
    "cancel_payload": lambda lua, entry: lua("cancel_payload", "x", "jobs", "-", 500, TERM),
    # by one who had it before
    "complete": lambda lua, entry: lua("complete", "", 1, 0, 0, 0, entry),
    "move": lambda lua, entry: lua("move", "-", 500),
    "purge": lambda lua, entry: lua("purge", "-", 500),
    "reschedule": lambda lua, entry: lua("reschedule", "i", "+60000"),
    "XDEL": lambda lua, entry: (
        lua.redis.xdel(lua.key("jobs"), entry),
        lua("repair", "jobs", "-", 500, TERM),
    ),
}


@pytest.mark.parametrize("way", LEAVE)
def test_what_leaves_is_held_back_no_more(lua: Lua, way: str) -> None:
    """Otherwise new jobs would wait behind its turn, and workers would wake for it."""
    lua("enqueue", "full", "i", "", 4, "data", "x", "id", "i")
    ((entry, *_),) = lua.lease()[2]
    assert lua("release", "w", 60_000, entry, 1) == [1]
    assert lua.redis.zcard(lua.key("limited")) == 1
    assert LEAVE[way](lua, entry)
    assert not lua.redis.exists(lua.key("limited"))


def test_conditions_leave_nothing(lua: Lua) -> None:
    """Taken ids end after their time or with the queue. A waiting producer leaves no key."""
    assert lua(
        "enqueue_if", 1, 5000, 1, "i", "", "throttle=50 unique=50", 4, "data", "a", "id", "i"
    )[2:] == ["i", 1]
    assert lua("enqueue_if", 1, 5000, 1, "", "", "", 2, "data", "a")[3] == 5
    assert lua.redis.hexists(lua.key("stats"), "gate")
    (row,) = lua.lease()[2]
    assert not lua.redis.hexists(lua.key("stats"), "gate")
    assert 0 < lua.redis.pttl(lua.key("gate")) <= 60_000
    assert lua("complete", "", 1, 1, 0, 0, row[0], "i", "=1 50") == [1]
    assert 0 < lua.redis.pttl(lua.key("taken")) <= 50
    until(lambda: not lua.redis.exists(lua.key("taken")))
    lua("enqueue_if", 0, 0, 1, "i", "", "throttle=60000", 4, "data", "a", "id", "i")
    lua("delete")
    assert not lua.redis.exists(lua.key("gate"), lua.key("taken"))


def test_ids_that_were_taken_do_not_gather(lua: Lua) -> None:
    """Each new id removes some whose time is over."""
    for number in range(300):
        lua(
            "enqueue_if",
            0,
            0,
            1,
            f"i{number}",
            "",
            "throttle=1",
            4,
            "data",
            "a",
            "id",
            f"i{number}",
        )
        if number == 0:
            lua("enqueue_if", 0, 0, 1, "long", "", "throttle=60000", 4, "data", "a", "id", "long")
    assert lua.redis.zcard(lua.key("taken")) < 20
