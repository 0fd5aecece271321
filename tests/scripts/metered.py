"""A script that counts the bytes and commands that it sends to the server. They are the same on any
machine."""

from __future__ import annotations

from typing import Any

from attrs import frozen

_HEAD = """
local server, cost = redis, {read = 0, written = 0, commands = 0, elements = 0}
local function weigh(kind, value)
  if type(value) == 'string' then
    cost[kind] = cost[kind] + #value
  elseif type(value) == 'table' then
    for _, item in ipairs(value) do weigh(kind, item) end
  end
  if kind == 'read' then cost.elements = cost.elements + 1 end
end
local function metered(ask)
  return function(...)
    cost.commands = cost.commands + 1
    for _, arg in ipairs({...}) do weigh('written', arg) end
    local reply = ask(...)
    weigh('read', reply)
    return reply
  end
end
local redis = setmetatable({call = metered(server.call), pcall = metered(server.pcall)}, {__index = server})
local function main()
"""
_TAIL = """
end
local reply = main()
return {reply, cost.read, cost.written, cost.commands, cost.elements}
"""


@frozen
class Cost:
    """The amounts that one run of a script moved inside the server, and its answer."""

    script: str
    read: int
    """Bytes that its commands answered to it."""
    written: int
    """Bytes that it handed to its commands, names of keys included."""
    commands: int
    elements: int
    """Items of the answers to it."""
    answered: int
    """Bytes of its own answer."""


def metered(source: str) -> str:
    """Change *source* so that it returns its reply and the numbers of `Cost`."""
    return _HEAD + source + _TAIL


def cost(script: str, reply: Any) -> tuple[Any, Cost]:
    """Split the answer of a script made by `metered` into the script's own and its cost."""
    answer, *numbers = reply
    return answer, Cost(script, *map(int, numbers), weight(answer))


def weight(reply: Any) -> int:
    """Return the number of bytes of an answer."""
    if isinstance(reply, list):
        return sum(map(weight, reply))
    return len(reply) if isinstance(reply, (bytes, str)) else 8
