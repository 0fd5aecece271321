"""The operations by which a worker reports its facts or rests, and by which operators ask workers
for something."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from headrace._model.checks import term
from headrace._model.settings import at_once
from headrace._protocol.keys import worker_name
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import text

Request = Literal["", "quiet", "stop"]


def report(
    ops: Ops, worker: str, facts: Mapping[str, Any], *, quiet: bool = False
) -> Op[tuple[str, int]]:
    """Keep the facts of a worker, and whether it is *quiet*. The answer is the request of an
    operator, or '', and the number of `set_concurrency`, or 0."""
    said = json.dumps(facts, separators=(",", ":"))
    return ops.op(
        "report", [worker, int(quiet), said], lambda reply: (text(reply[0]), int(reply[1]))
    )


def ask(ops: Ops, name: str, request: Request) -> Op[tuple[int, int]]:
    """Ask workers of this name for something. The answer is how many were asked, and how many
    cannot be."""
    return ops.op("ask_worker", [worker_name(name), request], lambda reply: (reply[0], reply[1]))


def set_concurrency(ops: Ops, number: int | None) -> Op[int]:
    """Set how many handlers each worker of the queue runs at once. `None` stands for the number in
    its code.
    """
    if number is not None:
        at_once(number, "; pause the queue to run none")
    return ops.op("set_concurrency", [number or 0], int)


def rest(ops: Ops, worker: str, duration: float) -> Op[int]:
    """Register *worker* for *duration* seconds without heartbeats, if the queue has no work.
    `rest.lua` explains it."""
    return ops.op("rest", [worker, term("duration", duration)], int)
