"""Operations that are packed except for one item. For single calls, making an `Op` takes as long as sending it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from attrs import frozen

from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import plain_ids, text
from headrace._protocol.script import script

T = TypeVar("T")
ITEM_BYTES = 1 << 16  # largest item of such a call; for larger items the packing time does not matter
_LANE = "0" * 16  # as long as a lane's name
_EMPTY = b"$0\r\n\r\n"


@frozen(eq=False)
class Prepared(Generic[T]):
    """A recorded script whose only argument, besides the number of its call, is one item."""

    join: Callable[[Sequence[bytes]], Op[list[T]]]
    """Makes one operation of any items, by another script."""
    op: Op[T]
    """That of an empty item."""
    lane_prefix: str
    _before: bytes
    _behind: bytes

    @classmethod
    def made(cls, join: Callable[[Sequence[bytes]], Op[list[T]]], op: Op[T]) -> Prepared[T]:
        """Pack *op* except for its lane, the number of the call, and the item."""
        before, _, behind = op.packed("EVALSHA", _LANE, "").partition(f":{_LANE}\r\n".encode())
        return cls(join, op, op.lane_prefix, before + b":", b"\r\n" + behind.removesuffix(2 * _EMPTY))

    def packed(self, lane: str, call: int, item: bytes) -> bytes:
        """Pack the call, like `Op.packed`."""
        number = b"%d" % call
        return b"%b%b%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
            self._before, lane.encode(), self._behind, len(number), number, len(item), item,
        )  # fmt: skip

    def of(self, item: bytes) -> Op[T]:
        """Make a usual operation of *item*, to send it in any other way."""
        op = self.op
        return Op(op.name, op.script, op.keys, [item], op.decode, op.lane_prefix)


def enqueue_one(ops: Ops) -> Prepared[str]:
    """Prepare the call that adds one job with only a payload. Its answer is the job's id."""
    source = script("enqueue_one")
    keys = [ops.keys.key(key) for key in source.key_names]

    def several(payloads: Sequence[bytes]) -> Op[list[str]]:
        return ops.plain(payloads, plain_ids)

    return Prepared[str].made(several, Op("enqueue", source, keys, [b""], text, ops.keys.lane("")))
