"""The description of a run for a child, and the operations that the child sends back.

The description is pickled, as the program of the child is. The child says plain data.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, cast

from attrs import evolve

from headrace._core.steps.run import Callbacks, Run
from headrace._isolation.values import unpacked
from headrace._model.codec import BytesCodec, binds
from headrace._model.policy import Durability
from headrace._protocol.durability import DurabilityWait
from headrace._protocol.op import Op, undecoded
from headrace._protocol.script import script

TRACE = "trace"  # of a claim: no field of it, as most have none


def described(run: Run, *, wraps: bool) -> bytes:
    """Describe a run for a child. With *wraps*, its codec has another inside."""
    claim: Any = evolve(run.claim, job=cast("Any", None))
    ops = evolve(run.ops, codec=BytesCodec())
    bare = evolve(
        run,
        ops=ops,
        values=cast("Any", None),
        claim=claim,
        callbacks=Callbacks(home=run.callbacks.home),
    )
    trace = getattr(run.claim, TRACE, None)
    around = (wraps, binds(run.ops.codec))
    return pickle.dumps((bare, None if trace is None else str(trace), around))


def carried_out(rows: Sequence[Any], parts: Sequence[bytes]) -> list[Op[Any]]:
    """Make the operations that a child has sent. Their answers stay raw."""
    made: list[Op[Any]] = []
    at = 0
    for name, keys, number, lane, durable in rows:
        wait = None if durable is None else DurabilityWait(Durability(**unpacked(durable)))
        args = parts[at : at + number]
        at += number
        op: Op[Any] = Op(name, script(name), keys, args, undecoded, lane, durability=wait)
        made.append(op)
    return made
