"""A foreign key of another type. A script that meets one has done nothing yet, or at least lost no
job."""

from __future__ import annotations

import pytest
import redis

from tests.scripts.calls import Call, arguments, cases, fill
from tests.scripts.conftest import Lua, declared, dumps, restore
from tests.support.facts import each


@pytest.fixture
def protocol() -> int:
    """Use one protocol, which is enough here."""
    return 2


@pytest.mark.long
@each(("name", "call"), [*cases(recorded=True), *cases(recorded=False)], empty=True)
def test_nothing_is_half_done(lua: Lua, name: str, call: Call) -> None:
    refused = []
    given = arguments(call, fill(lua))
    prepared = dumps(lua.redis)
    for part in declared(name):
        key = lua.key(f"lane:{part}" if part == "lane" else part)
        lua.redis.set(key, "mine")
        try:
            before = lua.state()
        except redis.ResponseError:  # the jobs themselves
            before = {}
        try:
            lua(name, *given, call=1, lane=part)
        except redis.ResponseError as error:
            refused.append(part)
            assert "WRONGTYPE" in str(error) or part == "lane", part  # noqa: PT017
            assert not before or lua.state() == before, part
            changed = key if before else ""
        else:
            changed = ""
        restore(lua.redis, prepared, changed)
    assert refused, "which keys does it use?"


def test_what_a_lease_buries_is_not_lost(lua: Lua) -> None:
    """Jobs without attempts left stay in place while the dead letters can't be written."""
    (entry,) = lua.leased("a")
    lua("release", "w", 0, entry, 1)
    lua.redis.delete(lua.key("released"))
    lua.redis.set(lua.key("dead"), "mine")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        lua.lease(most=1)
    assert list(lua.holders()) == [entry]
    lua.redis.delete(lua.key("dead"))
    lua("release", "w", 0, entry, 2)
    assert lua.lease(most=1)[2] == []
    assert lua.counts() == {"dead": 1, "enqueued": 1}
