"""The runs of a queue, page by page."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from headrace._core.effects import Call, send, send_all
from headrace._core.shards.map import OneShard, ShardMap
from headrace._model.state import JobState, RunState
from headrace._protocol import view_ops
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.features.runs.records import Records
from headrace._protocol.limits import LISTED_PER_SCRIPT
from headrace._protocol.queue_ops import Ops

# where the listings of jobs begin with runs, by their state
LISTINGS = {
    "blocked": ("blocked", "asleep -"),
    "delayed": ("delayed", "runs "),
    "leased": ("running", ""),
    "waiting": ("waiting", ""),
    "dead": ("dead", ""),
}


@define(eq=False)
class RunPages:
    """The runs of some states, by default the suspended, delayed and running ones. Those of one
    shard follow another's.
    """

    map: OneShard | ShardMap
    states: Sequence[str] = ("blocked", "delayed", "leased")
    _left: deque[tuple[Ops, str, str]] | None = field(default=None, init=False)

    def recorded(self) -> Call[list[tuple[JobState[Any], Records]] | None]:
        """Return the next page with all records. It may be empty, and is `None` at the end."""
        page = yield from self._page(20)  # each has 1 MiB at most
        if page is None:
            return None
        ops, states = page
        asked = [step_ops.of_job(ops, one) for one in states]
        found = (yield from send_all(asked)) if asked else []
        return [(one, rows) for one, rows in zip(states, found, strict=True) if rows]

    def more(self) -> Call[list[RunState] | None]:
        """Return the next page, which may be empty, or `None` at the end."""
        page = yield from self._page(LISTED_PER_SCRIPT)
        if page is None:
            return None
        ops, states = page
        if not states:
            return []
        found = yield from send(step_ops.heads(ops, states))
        return [_run(one, head) for one, head in zip(states, found, strict=True) if head]

    def _page(self, limit: int) -> Call[tuple[Ops, Sequence[JobState[Any]]] | None]:
        if self._left is None:
            yield from self.map.look()
            listings = [LISTINGS[state] for state in self.states]
            self._left = deque((ops, *one) for ops in self.map.ordered() for one in listings)
        if not self._left:
            return None
        ops, state, cursor = self._left.popleft()
        page = yield from send(view_ops.listing(ops, state, cursor, limit))
        if page.cursor:
            self._left.appendleft((ops, state, page.cursor))
        return ops, page.items


def _run(one: JobState[Any], head: step_ops.Head) -> RunState:
    job = one.job
    held = one.due is not None and round(one.due * 1000) == head.held
    waits_for = head.waits_for if held else ""
    return RunState(
        job.id, job.queue, one.state, head.at, head.kind, head.began, one.due, head.build, waits_for
    )
