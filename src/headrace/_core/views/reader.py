"""The reader of all views. It knows the server, and caches readings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from attrs import frozen

from headrace._core.effects import Call, Now
from headrace._core.views.catalogue import Catalogue, OpsFactory
from headrace._core.views.redaction import Redact, Redaction
from headrace._model.codec import Codec, chosen
from headrace._model.shards import apart
from headrace._model.state import JobState, WorkerState
from headrace._model.views.outbox import OutboxView
from headrace._model.views.queues import QueueView
from headrace._protocol.queue_ops import Ops

R = TypeVar("R")
SEARCH_KEPT = 5  # times as long as others: such a view is read again for each update of a page
STATES = ("waiting", "running", "delayed", "blocked", "dead")
JOBS_SHOWN = 20  # jobs of a group of dead letters, of a worker, or of a run's children
LOOKED_AT_MOST = 2000  # jobs that are read for one search, or one grouping
READ_AT_MOST_BYTES = 4 << 20  # of these jobs


@frozen
class QueueLook:
    """The counts of a queue at a moment, and the jobs a second that came and were done since the
    look before.
    """

    at: float
    enqueued: int
    completed: int
    since: tuple[float, float] = (0.0, 0.0)


class Reader:
    """Maker of all views of one namespace. *fresh* is the seconds for which a view is shown again.
    *with_results* reads the results of a job's steps, by the codec of its queue.
    """

    def __init__(
        self,
        namespace: str,
        codecs: Mapping[str, Codec[Any]] | None,
        redact: Redact | None,
        fresh: float,
        refusals: tuple[type[Exception], ...],
        with_results: Callable[[Codec[Any], JobState[Any]], JobState[Any]],
    ) -> None:
        self._catalogue = Catalogue(namespace)
        self._ops_factory = OpsFactory(
            self._catalogue, {name: chosen(codec) for name, codec in (codecs or {}).items()}
        )
        self.namespace = namespace
        self.fresh = fresh
        self.showing = Redaction(redact)
        self._refusals = refusals
        self._with_results = with_results
        self._trails: dict[str, deque[QueueLook]] = {}
        self._outboxes: dict[str, tuple[float, OutboxView | None]] = {}
        self._workers: dict[str, tuple[float, tuple[WorkerState, ...]]] = {}
        self._views: dict[str, tuple[float, QueueView]] = {}
        # when they were counted; dead letters, trimmed ones
        self._dead: dict[str, tuple[float, tuple[int, int]]] = {}
        self._kept: dict[tuple[Any, ...], tuple[float, Any, Exception | None]] = {}

    def codec(self, name: str) -> Codec[Any]:
        return self._ops_factory.codecs.get(name, chosen(None))

    def kept(
        self, key: tuple[Any, ...], build: Callable[[], Call[R]], fresh: float | None = None
    ) -> Call[R]:
        """Return the value that was read under *key* a moment ago, or read it by *build*. Errors
        are cached, too.

        *fresh*: seconds for which it is shown again, the reader's own if not given.
        """
        now = yield from Now()
        at, value, error = self._kept.get(key, (None, None, None))
        if at is None or now - at >= (self.fresh if fresh is None else fresh):
            error = None
            try:
                read: Any = yield from build()
                value = read
            # such as of an unreachable server: not each viewer should wait for it
            except Exception as raised:
                error = raised
            if len(self._kept) >= 256:  # views that are kept
                self._kept = {k: v for k, v in self._kept.items() if now - v[0] < self.fresh}
            self._kept[key] = ((yield from Now()), value, error)
        if error is not None:
            raise error
        return cast("R", value)

    def forget(self) -> None:
        self._kept.clear()
        self._workers.clear()
        self._views.clear()
        self._catalogue.forget()

    def _of(self, name: str) -> Call[list[Ops]]:
        return (yield from self._ops_factory.levelled([name]))[name]


def asked(parts: Sequence[Ops], id: str) -> list[tuple[Ops, str]]:
    """Return the shards that may have a job of this id, each with the id that the job has there."""
    bare, number = apart(id)
    return [(ops, id) for ops in parts if ops.keys.shard is None] + [
        (ops, bare)
        for ops in parts
        if ops.keys.shard is not None and number in (None, ops.keys.shard.number)
    ]
