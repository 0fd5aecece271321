"""The operation by which a listener to events announces itself."""

from __future__ import annotations

from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops


def listen(ops: Ops, *, sharded: bool = False) -> Op[bool]:
    """Tell the scripts that a client listens to events, by SSUBSCRIBE if *sharded*."""
    return ops.op("listen", [int(sharded)], bool)
