"""An operation as a value: one script, its keys and arguments, and what the reply means."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Generic, TypeVar, cast

from attrs import frozen
from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType]

R_co = TypeVar("R_co", covariant=True)
Arg = str | bytes | int
_INCLUDE = re.compile(r"^-- @include (\w+)\n", re.MULTILINE)


def pack(command: Sequence[Arg]) -> bytes:
    """A command as it is sent; in C, where redis-py does it in Python for asyncio."""
    return cast("Callable[[Sequence[Arg]], bytes]", pack_command)(command)


@frozen
class Script:
    """A `.lua` file of the package, its fragments included, and its SHA1."""

    name: str
    source: str
    sha: str

    @property
    def recorded(self) -> bool:
        """Whether its first key is a lane and its first argument a call number."""
        return "recorded()" in self.source

    @property
    def levelled(self) -> bool:
        """Whether its last keys are the streams of the queue's priority levels behind the first."""
        return "levels = behind(stats" in self.source and self.name != "move"


@cache
def script(name: str) -> Script:
    """Load `lua/<name>.lua`."""
    folder = files("headrace") / "lua"

    def include(match: re.Match[str]) -> str:
        return (folder / "lib" / f"{match[1]}.lua").read_text("utf-8")

    source = _INCLUDE.sub(include, (folder / f"{name}.lua").read_text("utf-8"))
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@frozen
class Op(Generic[R_co]):
    """One round trip, pure: nothing is sent until an executor runs it.

    For a recorded script `lane_prefix` is set: the executor adds the lane's key and the call number,
    and a call sent again is answered from the record of the first. Other scripts are safe to
    repeat as they are. To put one into your own pipeline: `pipe.execute_command(*op.wire())`, and
    `op.decode(reply)` for what came back.
    """

    name: str
    script: Script
    keys: Sequence[str]
    args: Sequence[Arg]
    decode: Callable[[Any], R_co]
    lane_prefix: str = ""
    items: Sequence[Any] = ()
    """What *join* takes: calls of one operation that wait for each other may be sent as one."""
    join: Callable[[Sequence[Any]], Op[Any]] | None = None
    """Makes one operation of the items of several; its decoded reply is a list, one for each item."""

    @property
    def size(self) -> int:
        """Bytes of its arguments, about."""
        return sum(len(arg) for arg in self.args if not isinstance(arg, int))

    @cached_property
    def body(self) -> memoryview:
        """Its arguments as they are sent. The head of the command is known when it is sent, this before."""
        packed = pack(tuple(self.args))
        return memoryview(packed)[packed.index(b"\n") + 1 :]

    def packed(self, verb: str, lane: str, call: str) -> bytes:
        """`wire` as it is sent."""
        head = self._head(verb, lane, call)
        return b"".join((b"*%d\r\n" % (len(head) + len(self.args)), pack(head).partition(b"\r\n")[2], self.body))

    def wire(self, verb: str = "EVAL", lane: str = "-", call: str = "") -> tuple[Arg, ...]:
        """The command. Without *call* nothing is recorded: right inside a MULTI, which we never repeat."""
        return (*self._head(verb, lane, call), *self.args)

    def _head(self, verb: str, lane: str, call: str) -> tuple[Arg, ...]:
        script = self.script.source if verb == "EVAL" else self.script.sha
        if self.lane_prefix:
            return (verb, script, len(self.keys) + 1, self.lane_prefix + lane, *self.keys, call)
        return (verb, script, len(self.keys), *self.keys)
