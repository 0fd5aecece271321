"""An operation as a value: one script, its keys and arguments, and what the reply means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from attrs import frozen
from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType]

from headrace._protocol.script import Script

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Arg = str | bytes | int


def pack(command: Sequence[Arg]) -> bytes:
    """A command as it is sent; in C, where redis-py does it in Python for asyncio.

    Numbers are spelled here: hiredis takes their `repr`, in which a signal may raise, and does not look (3.5: it reads
    a null pointer, and Ctrl-C ends the process).
    """
    spelled = tuple([b"%d" % arg if isinstance(arg, int) else arg for arg in command])
    return cast("Callable[[Sequence[Arg]], bytes]", pack_command)(spelled)


def parts(items: Sequence[T], size: Callable[[T], int], most: int, most_bytes: int) -> Iterator[Sequence[T]]:
    """*items* in their order, so many at a time and so many bytes, or one that alone is more."""
    start = weight = 0
    for at, item in enumerate(items):
        weight += size(item)
        if at > start and (at - start == most or weight > most_bytes):
            yield items[start:at]
            start, weight = at, size(item)
    if start < len(items):
        yield items[start:]


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
        packed = pack(self.args)
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
