"""No script moves more than about 1 MiB of payloads, or one job if that alone is more, however much
there is.

Counted, not timed: the scripts run as they are, with the commands that they call counted
(`metered`). A script of the package has its stand (`stands`), or touches no payloads, for the
reason in `calls`; each call of a stand is held against the limits.
"""

from __future__ import annotations

import pytest

from headrace._protocol.features.flows.ops import CHILDREN_AT_MOST
from headrace._protocol.script import names
from tests.scripts import stands_flows, stands_jobs, stands_whole  # noqa: F401 - they fill STANDS
from tests.scripts.calls import CALLS
from tests.scripts.conftest import Lua
from tests.scripts.metered import Cost, cost, metered
from tests.scripts.stands import MANY, PAYLOAD, STANDS, large

MIB = 1 << 20
ASIDE = 100_000  # bytes that are no payloads
LIMIT = MIB + len(PAYLOAD) + ASIDE  # what is read before it is known to be too much
# XINFO STREAM shows the first and the last entry, whatever is asked of it.
# And a lease call reads one that is due, and one that rises, twice; a retry reads and writes
JOBS = {"counts": 2, "delete": 2, "lease": 3, "measure": 3, "repair": 3}


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 2


def mixed(lua: Lua) -> list[str]:
    """Enqueue small jobs with large ones behind them, and return their entries."""
    return [*lua.add(*["x"] * 20), *large(lua, 12)]


def test_small_jobs_say_nothing_of_the_large_ones_behind_them(lua: Lua) -> None:
    """At most eight jobs are read that are not known to fit."""
    mixed(lua)
    lua.costs = []
    lua("list", "waiting", "", 200)
    assert max(noted.read for noted in lua.costs) < 9 * len(PAYLOAD)


def test_every_script_has_its_stand() -> None:
    named = [*STANDS, *(name for name, calls in CALLS.items() if calls.payloads)]
    assert sorted(named) == names(), "exactly one of: a stand, a reason in CALLS"


def problems(costs: list[Cost]) -> list[str]:
    """Return the costs that are over the limits."""
    return [
        f"{noted.script}: {name} {number:,}, at most {most:,}"
        for noted in costs
        for name, number, most in (
            (
                "bytes read",
                noted.read,
                max(LIMIT, JOBS.get(noted.script, 1) * len(PAYLOAD) + ASIDE),
            ),
            ("bytes written", noted.written, LIMIT),
            ("bytes answered", noted.answered, LIMIT),
            ("commands", noted.commands, 15_000),
            ("items read", noted.elements, 20_000),
        )
        if number > most
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(STANDS))
def test_a_script_is_bounded_by_bytes(lua: Lua, name: str) -> None:
    lua.costs = []
    STANDS[name](lua)
    measured = [noted for noted in lua.costs if noted.script == name]
    assert measured, "the stand does not call its script"
    assert not problems(measured)


@pytest.mark.parametrize(("stage", "times"), [("a", 2), ("b", 1)])
def test_a_full_fan_out_is_bounded(lua: Lua, stage: str, times: int) -> None:
    """There is a command for each child with its payload, which is sent twice before a further
    stage. `b` is a last stage.
    """
    payload = "x" * 900
    item = stands_flows.fan(0, stands_flows.begin(lua, 0, "x"), CHILDREN_AT_MOST, payload, stage)
    lua.costs = []
    assert stands_flows.advance(lua, [0], *item) == [1]
    (noted,) = lua.costs
    assert noted.commands < CHILDREN_AT_MOST + 100
    assert times <= noted.written / (CHILDREN_AT_MOST * len(payload)) < times + 0.5
    assert noted.read < ASIDE


def test_one_that_is_not_would_be_seen(lua: Lua) -> None:
    large(lua)
    source = metered("return #redis.call('XRANGE', KEYS[1], '-', '+')")
    reply, noted = cost("all", lua.redis.eval(source, 1, lua.key("jobs")))
    assert reply == MANY
    assert noted.read > MANY * len(PAYLOAD)
    assert len(problems([noted])) == 1


def test_a_payload_that_goes_on_coming_is_cancelled_to_the_end_that_there_was(lua: Lua) -> None:
    lua.add(*["x"] * 3)
    place, cursor, gone, calls = "jobs", "-", 0, 0
    while place == "jobs":
        more, place, cursor = lua("cancel_payload", "x", place, cursor, 1, 1000)
        lua.add("x")
        gone, calls = gone + more, calls + 1
        assert calls < 10
    assert gone == 3
    assert lua.counts() == {"waiting": calls, "enqueued": 3 + calls, "cancelled": 3}
