"""The operations by which a worker reports its facts or rests, and an operator asks it to be quiet
or to stop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from headrace._model.checks import term
from headrace._protocol.keys import worker_name
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import text

Request = Literal["", "quiet", "stop"]


def report(ops: Ops, worker: str, facts: Mapping[str, Any], *, quiet: bool = False) -> Op[str]:
    """Keep the facts of a worker, and whether it is *quiet*. The answer is the request of an
    operator, or ''."""
    return ops.op("report", [worker, int(quiet), json.dumps(facts, separators=(",", ":"))], text)


def ask(ops: Ops, name: str, request: Request) -> Op[tuple[int, int]]:
    """Ask workers of this name for something. The answer is how many were asked, and how many
    cannot be."""
    return ops.op("ask_worker", [worker_name(name), request], lambda reply: (reply[0], reply[1]))


def rest(ops: Ops, worker: str, duration: float) -> Op[int]:
    """Register *worker* for *duration* seconds without heartbeats, if the queue has no work.
    `rest.lua` explains it."""
    return ops.op("rest", [worker, term("duration", duration)], int)
