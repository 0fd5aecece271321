"""An operation as a value: one script, its keys and arguments, and what the reply means."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

from attrs import frozen

R_co = TypeVar("R_co", covariant=True)
Arg = str | bytes | int
_INCLUDE = re.compile(r"^-- @include (\w+)\n", re.MULTILINE)


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

    def wire(self, verb: str = "EVAL", lane: str = "-", call: str = "") -> tuple[Arg, ...]:
        """The command. Without *call* nothing is recorded: right inside a MULTI, which we never repeat."""
        body = self.script.source if verb == "EVAL" else self.script.sha
        if self.lane_prefix:
            return (
                verb,
                body,
                len(self.keys) + 1,
                self.lane_prefix + lane,
                *self.keys,
                call,
                *self.args,
            )
        return (verb, body, len(self.keys), *self.keys, *self.args)
