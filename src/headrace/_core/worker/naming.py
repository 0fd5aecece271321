"""Claiming a worker's name. Two live workers may not share one, so a newcomer first looks up its holder, then waits 1.5
heartbeats for a sign of life.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from headrace._model.settings import WorkerSettings
from headrace._protocol.answers import Entered
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace.errors import NameTaken

SILENT_HEARTBEATS = 1.5  # heartbeats without a sign of life after which the worker that had our name is dead


@define(eq=False)
class NameClaim:
    """The claim of one registration on its name."""

    ops: Ops
    name: str  # the name without its random part
    seen: str = ""  # the worker that may live under it, in the server's words
    since: float = 0.0  # when we saw that worker
    predecessor: str = ""  # the worker that had this name before; jobs that it still holds are ours

    def op(self, worker: str, settings: WorkerSettings, now: float, kinds: Sequence[str]) -> Op[Entered]:
        """Return the operation that claims the name, for a worker that has handlers for jobs of *kinds*."""
        decide = bool(self.seen) and now - self.since >= SILENT_HEARTBEATS * settings.heartbeat
        return self.ops.register(worker, self.name, settings.timeout, self.seen, decide=decide, kinds=kinds)

    def admits(self, answer: Entered, now: float) -> bool:
        """Tell whether the name is ours. If not, ask again. Raises `NameTaken` if another live worker has the name."""
        if answer.verdict < 0:
            raise NameTaken(
                f"name={self.name!r}: {answer.other} lives under this name, on queue {self.ops.keys.queue!r}; give "
                "each process a name of its own, or none, or stop the other; one that was killed is forgotten in a "
                "moment"
            )
        if answer.verdict > 0:
            self.predecessor = answer.other
        elif not self.seen:
            self.seen, self.since = answer.other, now
        return answer.verdict > 0
