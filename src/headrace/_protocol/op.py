"""An operation as a value. It has one script, its keys and arguments, and the decoder of its
reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from attrs import frozen
from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType]

from headrace._protocol.script import Script

if TYPE_CHECKING:
    from headrace._protocol.durability import DurabilityWait

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Arg = str | bytes | int
FEW = 16  # arguments that are packed together with the head: joining two parts takes longer


def pack(command: Sequence[Arg]) -> bytes:
    """Pack a command in wire format, in C. For asyncio, redis-py does this in Python.

    Numbers become text here, because hiredis calls their `repr`, and does not check whether that
    raises, as a signal handler may. hiredis 3.5 then reads a null pointer, and Ctrl-C crashes the
    process.
    """
    spelled = tuple([b"%d" % arg if isinstance(arg, int) else arg for arg in command])
    return cast("Callable[[Sequence[Arg]], bytes]", pack_command)(spelled)


def chunks(
    items: Sequence[T], size: Callable[[T], int], most: int, most_bytes: int
) -> Iterator[Sequence[T]]:
    """Cut *items* into chunks of at most *most* items and *most_bytes* bytes. A larger item is a
    chunk alone."""
    start = weight = 0
    for at, item in enumerate(items):
        weight += size(item)
        if at > start and (at - start == most or weight > most_bytes):
            yield items[start:at]
            start = at
            weight = size(item)
    if start < len(items):
        yield items[start:]


class TooLarge(ValueError):
    limit = 0  # bytes of the server's largest value, if known


@frozen
class Op(Generic[R_co]):
    """One round trip as a value. Nothing is sent until an executor runs it.

    A recorded script has `lane_prefix`. The executor adds the lane's key and the call number, and a
    repeated call is answered from the record of the first one. Other scripts are safe to repeat. To
    send an operation in your own pipeline, call `pipe.execute_command(*op.wire())`, and
    `op.decode(reply)` for its reply.
    """

    name: str
    script: Script
    keys: Sequence[str]
    args: Sequence[Arg]
    decode: Callable[[Any], R_co]
    lane_prefix: str = ""
    items: Sequence[Any] = ()
    """The arguments of *join*. Concurrent calls of one operation may be sent as one."""
    join: Callable[[Sequence[Any]], Op[Any]] | None = None
    """Makes one operation of the items of several. Its decoded reply is a list, one element for
    each item."""
    durability: DurabilityWait | None = None
    """The wait that goes with it, if its writes are to be durable."""

    @property
    def size(self) -> int:
        return sum(len(arg) for arg in self.args if not isinstance(arg, int))

    @cached_property
    def body(self) -> memoryview:
        """The arguments in wire format, packed early. The head (lane, call number) is known only
        when sending."""
        packed = pack(self.args)
        return memoryview(packed)[packed.index(b"\n") + 1 :]

    def packed(self, verb: str, lane: str, call: str) -> bytes:
        head = self._head(verb, lane, call)
        if len(self.args) <= FEW:
            return pack((*head, *self.args))
        return b"".join(
            (b"*%d\r\n" % (len(head) + len(self.args)), pack(head).partition(b"\r\n")[2], self.body)
        )

    def wire(self, verb: str = "EVAL", lane: str = "-", call: str = "") -> tuple[Arg, ...]:
        """Return the command. Without *call* nothing is recorded, which is right in a MULTI, as we
        never repeat it."""
        return (*self._head(verb, lane, call), *self.args)

    def _head(self, verb: str, lane: str, call: str) -> tuple[Arg, ...]:
        script = self.script.source if verb == "EVAL" else self.script.sha
        if self.lane_prefix:
            return (verb, script, len(self.keys) + 1, self.lane_prefix + lane, *self.keys, call)
        return (verb, script, len(self.keys), *self.keys)


# largest item of a prepared call; for larger items the packing time does not matter
ITEM_BYTES = 1 << 16
_LANE = "0" * 16  # as long as a lane's name
_EMPTY = b"$0\r\n\r\n"
N = TypeVar("N")


@frozen(eq=False)
class Prepared(Generic[N, T]):
    """A packed call of a recorded script, without its lane, the number of the call, and the
    arguments of one item.

    For single calls, making an `Op` takes as long as sending it.
    """

    join: Callable[[Sequence[N]], Op[list[T]]]
    """Makes one operation of any items."""
    op: Op[T]
    """The operation without an item."""
    args: Callable[[N], Sequence[str | bytes]]
    """Returns the arguments of an item."""
    weight: Callable[[N], int]
    """Returns the bytes of an item, or more than `ITEM_BYTES` if it must go alone."""
    lane_prefix: str
    _words: int  # of the command without the arguments
    _before: bytes
    _behind: bytes

    @classmethod
    def made(
        cls,
        join: Callable[[Sequence[N]], Op[list[T]]],
        op: Op[T],
        args: Callable[[N], Sequence[str | bytes]],
        weight: Callable[[N], int],
    ) -> Prepared[N, T]:
        """Pack *op* except for its lane, the number of the call, and the arguments of the item."""
        words, _, rest = op.packed("EVALSHA", _LANE, "").removesuffix(_EMPTY).partition(b"\r\n")
        before, _, behind = rest.partition(f":{_LANE}\r\n".encode())
        return cls(
            join, op, args, weight, op.lane_prefix, int(words[1:]), before + b":", b"\r\n" + behind
        )

    def packed(self, lane: str, call: int, item: N) -> bytes:
        args = self.args(item)
        number = b"%d" % call
        packed = cast("Callable[[Sequence[str | bytes]], bytes]", pack_command)(args)
        return b"*%d\r\n%b%b%b$%d\r\n%b\r\n%b" % (
            self._words + len(args),
            self._before,
            lane.encode(),
            self._behind,
            len(number),
            number,
            packed[packed.index(b"\n") + 1 :],
        )

    def of(self, item: N) -> Op[T]:
        op = self.op
        return Op(op.name, op.script, op.keys, self.args(item), op.decode, op.lane_prefix)


def undecoded(reply: Any) -> Any:
    return reply
