"""Lua allows 200 locals a function. Each script compiles on each server and has some left."""

from __future__ import annotations

import pytest
import redis

from headrace._protocol.script import script
from tests.scripts.calls import CALLS

LEFT_AT_LEAST = 40


def loads(client: redis.Redis, source: str, more: int) -> bool:
    """Tell whether the server compiles the script with *more* locals before its first line."""
    declared = "".join(f"local spare_{at}\n" for at in range(more))
    try:
        client.script_load(declared + source)
    except redis.ResponseError as error:
        if "200 local variables" in str(error) or "too complex" in str(error):
            return False
        raise
    return True


def left(client: redis.Redis, source: str) -> int:
    """Count the locals that the main function of a script may still have."""
    low = 0
    high = 200
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if loads(client, source, middle) else (low, middle - 1)
    return low


def test_locals_are_left(client: redis.Redis) -> None:
    """The test fails before a script can't be compiled. If it does, move locals into a table or a
    function."""
    found = {name: left(client, script(name).source) for name in CALLS}
    assert {name: n for name, n in found.items() if n < LEFT_AT_LEAST} == {}


def test_a_script_without_locals_left_is_found(client: redis.Redis) -> None:
    full = "".join(f"local one_{at}\n" for at in range(198)) + "return 1"
    assert left(client, full) == 2
    with pytest.raises(redis.ResponseError):
        client.script_load("return (")
