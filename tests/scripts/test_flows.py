"""The scripts of flows on an empty server, repeated, on a full server, and with a key of another
type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.scripts.conftest import TERM, Lua, dumps, restore
from tests.scripts.test_out_of_memory import FULL, fill
from tests.support.facts import each

PARTS = [
    "jobs", "wake", "ids", "leases", "released", "delayed", "bodies", "blocked", "dead", "stats", "flows", "events",
    "control", "limited", "asleep", "steps", "held", "slots", "settled", "stopped",
    "cancels", "ends", "ended",
]  # fmt: skip
UNHELD = ("slots", "settled", "stopped")  # of leases that hold a slot: `tests/fair`
KEPT = ("ends", "ended")  # of queues with a history
CHANNELS = ("events", "control")  # no keys: nobody can have one of another type
BEGIN = [
    "jobs",
    "wake",
    "ids",
    "released",
    "delayed",
    "bodies",
    "stats",
    "flows",
    "events",
    "cancels",
]
RUN = "headrace:{q}:q:flow:o"


@pytest.fixture
def protocol() -> int:
    """Use a protocol that the other tests do not."""
    return 3


@pytest.fixture
def flow(lua: Lua) -> Iterator[Flow]:
    yield Flow(lua)
    lua.redis.config_set("maxmemory", 0)


class Flow:
    """A flow of two stages. The keys of `a` are the keys of the queue `q`."""

    def __init__(self, lua: Lua) -> None:
        self.lua = lua
        self.stages = [lua.key(part) for part in PARTS] + [
            f"headrace:{{q}}:q/b:{part}" for part in PARTS
        ]

    def start(self, name: str = "o", call: int | str = "", delay: str = "") -> int:
        extra = [f"headrace:{{q}}:q:flow:{name}", *(self.lua.key(part) for part in BEGIN)]
        fields = ("data", "x", "id", name, "headrace-flow", extra[0])
        args = (name, "a", delay, '{"k":"v"}', 1, f"k\nv\n{name}", *fields)
        return int(self.lua("flow_start", *args, extra=extra, call=call))

    def leased(self) -> str:
        """Start a run, lease its job and return the entry."""
        assert self.start() == 1
        return str(self.lua.lease()[2][0][0])

    def advance(
        self, *items: Any, call: int | str = "", worker: str = "", lane: str = "l", runs: int = 1
    ) -> Any:
        args = (worker, 60_000, 1000, 2, "a", "b", "b", "", *items)
        return self.lua(
            "flow_advance", *args, extra=[*self.stages, *[RUN] * runs], call=call, lane=lane
        )

    def read(self, name: str = "o") -> Any:
        return self.lua("flow_read", 2, "", 0, "a", "b", name, extra=[RUN])[0]

    def state(self) -> dict[str, Any]:
        return {part: value for part, value in self.lua.state().items() if "lane:" not in part}


def move(entry: str, target: str = "b", result: Any = "r") -> list[Any]:
    return ["move", "o", "a", entry, 1, 1, result, target, "", 0]


def fan(entry: str, children: int = 2, policy: str = "fail") -> list[Any]:
    flat = [
        x for i in range(children) for x in (f"c{i}", "b", "", 4, "data", "y", "headrace-flow", RUN)
    ]
    return ["move", "o", "a", entry, 1, 0, "", "b", policy, children, *flat]


def died(flow: Flow) -> list[Any]:
    flow.lua("dead_letter", "w", 1000, flow.leased(), 1, "why")
    return ["event", "o", "a"]


def redriven(flow: Flow) -> list[Any]:
    assert flow.advance(*died(flow)) == [1]
    flow.lua("redrive", "-", 500, "", "")
    return ["event", "o", "a"]


def cancelled(flow: Flow) -> list[Any]:
    flow.advance(*fan(flow.leased()))
    flow.lua("cancel", "o", TERM)
    return ["event", "o", "a"]


def completed(flow: Flow) -> list[Any]:
    assert flow.lua("complete", "", 1, 1, 0, 0, flow.leased(), "o") == [1]
    return ["event", "o", "a"]


def begun(flow: Flow) -> list[Any]:
    flow.advance(*fan(flow.leased()))
    return ["cancel", "o"]


CASES: dict[str, Callable[[Flow], list[Any]]] = {
    "on": lambda flow: move(flow.leased()),
    "the end": lambda flow: move(flow.leased(), ""),
    "fan-out": lambda flow: fan(flow.leased()),
    "no children": lambda flow: fan(flow.leased(), 0),
    "died": died,
    "redriven": redriven,
    "cancelled": cancelled,
    "completed": completed,
    "cancel": begun,
}


@each("case", CASES, empty=True)
def test_a_repeated_move_acts_once(flow: Flow, case: str) -> None:
    items = CASES[case](flow)
    assert flow.advance(*items, call=7) == [1]
    after = flow.state()
    assert flow.advance(*items, call=7) == [1]
    assert flow.state() == after
    assert flow.advance(*items, call=8) == [0]
    assert flow.state() == after


@pytest.mark.parametrize("delay", ["", "+60000"])
def test_a_repeated_start_begins_one_run(flow: Flow, delay: str) -> None:
    assert flow.start(call=1, delay=delay) == 1
    after = flow.state()
    assert flow.start(call=1, delay=delay) == 1
    assert flow.start(call=2, delay=delay) == 0
    assert flow.state() == after


def test_nothing_there(flow: Flow) -> None:
    assert flow.advance(
        *move("5-0"), "event", "o", "a", "cancel", "o", "cancel", "o/1/c", runs=4
    ) == [0, 0, 0, 0]
    assert flow.read() == []
    assert flow.lua("flow_find", "k\nv", "", 10) == [""]
    assert flow.lua("flow_events", 10, extra=[flow.stages[-1]]) == []
    assert flow.lua.redis.keys("*") == []


def test_what_happened_outside_is_told(flow: Flow) -> None:
    died(flow)
    assert flow.lua("flow_events", 10, extra=[flow.stages[-1]]) == [1, "o"]
    assert flow.lua("flow_find", "k\nv", "", 1) == ["o", "o"]
    assert flow.lua("flow_find", "k\nv", "o", 1) == [""]
    assert flow.lua("flow_find", "k\n", "", 10) == [""]


def test_many_at_once(flow: Flow) -> None:
    """A full fan-out, and its children's ends, a hundred a call."""
    entry = flow.leased()
    assert flow.advance(*fan(entry, 1000)) == [1]
    for at in range(0, 1000, 100):
        items: list[Any] = [x for i in range(at, at + 100) for x in ("cancel", f"o/1/c{i}")]
        assert flow.advance(*items, runs=100)[:100] == [1] * 100
    assert flow.read()[:3] == ["dead", "a", "failed"]
    assert flow.lua.counts() == {"dead": 1, "enqueued": 1}


def test_a_start_is_refused_whole_by_a_full_server(flow: Flow) -> None:
    flow.start("other")
    before = flow.state()
    fill(flow.lua)
    for delay in ("", "+60000"):
        with pytest.raises(redis.ResponseError, match=FULL):
            flow.start(call=1, delay=delay)
        assert flow.state() == before
    flow.lua.redis.config_set("maxmemory", 0)
    assert flow.start(call=1) == 1


@pytest.mark.parametrize("case", CASES)
def test_a_full_server_lets_flows_go_on(flow: Flow, case: str) -> None:
    items = CASES[case](flow)
    fill(flow.lua)
    assert flow.advance(*items, call=1) == [1]


@pytest.mark.long
@each("case", CASES, empty=True)
def test_nothing_is_half_done(flow: Flow, case: str) -> None:
    """Any of the keys may have another type. The key of the run is tested in
    `tests/flows/test_foreign.py`."""
    refused = 0
    stages = [key for key in flow.stages if not key.endswith((*CHANNELS, *UNHELD, *KEPT))]
    keys = [*stages, flow.lua.key("index"), *([RUN] if case == "cancel" else [])]
    items = CASES[case](flow)
    prepared = dumps(flow.lua.redis)
    for key in keys:
        flow.lua.redis.set(key, "mine")
        try:
            before = flow.state()
        except redis.ResponseError:  # the jobs themselves
            before = {}
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            flow.advance(*items, call=1)
        refused += 1
        assert not before or flow.state() == before, key
        restore(flow.lua.redis, prepared, key if before else "")
    assert refused == len(keys) >= 2 * (len(PARTS) - 7) + 1


@each("part", KEPT)
@each("case", CASES, empty=True)
def test_nothing_is_half_done_where_a_history_is_foreign(flow: Flow, case: str, part: str) -> None:
    items = CASES[case](flow)
    for stage in (flow.lua.key(""), "headrace:{q}:q/b:"):
        flow.lua.redis.hset(stage + "stats", "history", "10 1000")
    flow.lua.redis.set(f"headrace:{{q}}:q/b:{part}", "mine")
    before = flow.state()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        flow.advance(*items, call=1)
    assert flow.state() == before


def test_a_start_is_not_half_done(flow: Flow) -> None:
    for key in [
        *(flow.lua.key(part) for part in BEGIN if part not in CHANNELS),
        flow.lua.key("index"),
        RUN,
    ]:
        flow.lua.redis.flushall()
        flow.lua.redis.set(key, "mine")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            flow.start()
        assert flow.lua.redis.keys("*") == [key]


def test_when_a_job_left_its_stages_and_fanned_out(flow: Flow) -> None:
    """Times are sent only to callers that ask for them. A child tells its stage and the time when
    it left the stage."""
    before = int(flow.lua.redis.time()[0]) * 1000
    flow.advance(*fan(flow.leased(), 2))
    entry = flow.lua.redis.hget(flow.stages[2 + len(PARTS)], "o/1/c0")
    assert flow.advance("move", "o/1/c0", "b", entry, 1, 0, "", "", "", 0) == [1]
    assert flow.read()[8] == ["c0", "done b ", 0, "", "c1", "active b ", 0, ""]
    assert flow.read()[11:] == ["1", [], ""]
    (row,) = flow.lua("flow_read", 2, "", 1, "a", "b", "o", extra=[RUN])
    (began, fanned, *left), ended = row[12], row[8][1].removeprefix("done b ")
    assert (row[8][5], left) == ("active b ", ["", ""])
    assert before <= int(began) <= int(fanned) <= int(ended)
    (row,) = flow.lua("flow_read", 2, "", 1, "a", "b", "o/1/c0", extra=[RUN])
    assert row[11:] == ["", [fanned, "", "", ended], ""]
    flow.lua.redis.hdel(RUN, "left:b:o/1/c0", "fanned:o/1/")
    (row,) = flow.lua("flow_read", 2, "", 1, "a", "b", "o", extra=[RUN])
    assert (row[8][1], row[12]) == ("done b ", [began, "", "", ""])


@pytest.mark.parametrize("worker", ["w", "v"])
def test_the_fence(flow: Flow, worker: str) -> None:
    entry = flow.leased()
    assert flow.advance(*move(entry), worker=worker) == [int(worker == "w")]


@pytest.mark.parametrize(
    ("children", "size", "told"),
    [(1000, 0, [500]), (300, 0, [300, 200]), (2, 600_000, [1]), (2, 10, [2] * 6)],
)
def test_a_read_is_bounded_in_children_and_bytes(
    flow: Flow, children: int, size: int, told: list[int]
) -> None:
    """A read stops at the bound, and the caller goes on from there. If the children have changed,
    it starts again."""
    flow.advance(*fan(flow.leased(), children))
    for i in range(children if size else 0):
        entry = flow.lua.redis.hget(flow.stages[2 + len(PARTS)], f"o/1/c{i}")
        item = ["move", f"o/1/c{i}", "b", entry, 1, 1, "r" * size, "", "", 0]
        if i < children - 1:
            assert flow.advance(*item) == [1]
        else:
            flow.lua.redis.hset(RUN, f"at:o/1/c{i}", "done b")
            flow.lua.redis.hset(RUN, f"result:b:o/1/c{i}", "r" * size)
    rows = flow.lua("flow_read", 2, "", 0, "a", "b", *["o"] * 6, extra=[RUN] * 6)
    assert [len(row[8]) // 4 for row in rows] == told
    *whole, cursor = (row[9] for row in rows)
    assert not any(whole)
    assert bool(cursor) == (told[-1] < children)
    if cursor:
        (more,) = flow.lua("flow_read", 2, cursor, 0, "a", "b", "o", extra=[RUN])
        assert len(more[8]) // 4 == min(500, children - told[-1])
        assert more[8][0] not in rows[-1][8][::4]
        flow.lua.redis.hset(RUN, "fanout:o", "77")
        (anew,) = flow.lua("flow_read", 2, cursor, 0, "a", "b", "o", extra=[RUN])
        assert (anew[8][0], anew[10]) == (rows[-1][8][0], 0)
