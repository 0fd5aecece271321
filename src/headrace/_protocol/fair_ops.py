"""The operations of queues with terms: `fair=`, `weights=` and `limits=`.

`Ops.lease` calls `lease_fair` in place of `lease` where the settings have terms. Its `Grant` says with `unread` that
new jobs were not looked at, so `line_up` is to be called until it answers false; and with `structure` which terms the
queue has. `declare` is called before the first lease: it answers the structure by which other live workers
lease, else `None`. A lease by a program without terms, or with a rate limit by another key, fails with
`FAIR <structure>`. `redeclare` is for operators: repeat it while it answers true; without terms it ends them.
"""

from __future__ import annotations

from typing import Any

from headrace._model.terms import BUSIEST_AT_MOST, Share
from headrace._model.views import LimitView, SlotView
from headrace._protocol.limits import LOOKS_PER_SCRIPT
from headrace._protocol.op import Arg, Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import raw, text
from headrace._protocol.terms import given, parts, weights


def _declaration(ops: Ops, mode: str, worker: str) -> list[Arg]:
    terms = ops.settings.terms
    if terms is None:
        return [mode, worker, "", ""]
    return [mode, worker, terms.structure, given(terms, ops.share), *weights(terms)]


def declare(ops: Ops, worker: str) -> Op[tuple[bool, str | None]]:
    """Declare the terms of the queue: their numbers count from now on. The answer: whether to call again, as a change
    of the structure takes several calls; and `None`, or the structure of the terms that other live workers have.
    """
    args = _declaration(ops, "serve", worker)
    return ops.op("declare_terms", args, lambda reply: (reply[0] == 2, None if reply[0] else text(reply[1])))


def redeclare(ops: Ops) -> Op[bool]:
    """Give the queue these terms, or end them. True asks for another call: jobs in lines go to the front first."""
    return ops.op("declare_terms", _declaration(ops, "force", ""), lambda reply: reply[0] == 2)


def line_up(ops: Ops, worker: str) -> Op[bool]:  # noqa: ARG001 - as all calls of workers
    """Look at `LOOKS_PER_SCRIPT` new jobs without leasing any. True: there are more."""
    return ops.op("line_up", [LOOKS_PER_SCRIPT, *ops.buckets()], bool)


def shares(ops: Ops) -> Op[list[Share]]:
    """Read the shares of the ten values that had the most run time of late."""

    def decode(reply: Any) -> list[Share]:
        return [
            Share(
                parts(raw(path)),
                int(running),
                int(waiting),
                float(p50) / 1000 or None,
                float(p95) / 1000 or None,
                float(ms) / 1000,
                float(weight),
            )
            for path, ms, weight, running, waiting, p50, p95 in reply[2]
        ]

    return ops.op("shares", [BUSIEST_AT_MOST], decode)


def slots(ops: Ops) -> Op[list[LimitView]]:
    """Read how many slots of each limit by a header are taken, of the ten values with the most."""

    def decode(reply: Any) -> list[LimitView]:
        found: list[LimitView] = []
        for key, places, more, rows in reply:
            values = zip(rows[::3], rows[1::3], rows[2::3], strict=True)
            some = tuple(SlotView(text(value), taken, waits == 1) for value, taken, waits in values)
            found.append(LimitView(text(key), places, some, more == 1))
        return found

    return ops.op("slots", [BUSIEST_AT_MOST], decode)
