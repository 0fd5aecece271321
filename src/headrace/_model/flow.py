"""Values of flows. A stage's handler gets a `FlowJob` and may return a `Next` or a `FanOut`.
`FlowState` and the views show runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attrs import field, frozen

from headrace._model.job import Job, NewJob, shortened
from headrace._model.views.queues import QueueView
from headrace.errors import CodecError, describe_error

NOTHING: Mapping[str, Any] = MappingProxyType({})
Attributes = Mapping[str, "str | list[str]"]


@frozen
class Next:
    """The return value of a stage's handler that goes on to *stage*, which the stage must
    declare, or ends here (`None`).

    *result* takes the place of the stage's result.
    """

    stage: str | None
    result: Any = field(default=None, repr=shortened)


@frozen
class FanOut:
    """The return value of a stage's handler that waits for *children*, and goes on when the last
    of them has ended.

    *children* are payloads or `NewJob`s. They are at most 1,000 and about 1 MiB in all, or one of
    any size. The `id` of a `NewJob` is the child's name among its siblings. It has no `/`, and
    otherwise the name is its number, from 0. The `queue` of a `NewJob` is the stage where it
    begins. The other children begin in *stage*, which is needed unless the stage declares exactly
    one in `children=`. *join* is the stage to go on to, by default the stage's own.

    *failed* is the reaction to a child that died or was cancelled. With `"fail"` the parent dies
    when all children have ended. With `"cancel"` the first failure also cancels the siblings. With
    `"continue"` the parent goes on with the other results.
    """

    children: Iterable[Any] = field(repr=shortened)
    stage: str | None = None
    join: str | None = None
    failed: str = "fail"
    result: Any = field(default=None, repr=shortened)


def children_of(fan: FanOut) -> Iterable[Any]:
    """Return the children of a fan-out. Raises `TypeError` if they are one payload."""
    given: Any = fan.children
    one = (str, bytes, bytearray, memoryview, NewJob, Mapping)
    if isinstance(given, one) or not isinstance(given, Iterable):
        kind = type(fan.children).__name__
        raise TypeError(
            f"FanOut: children must be an iterable of payloads or NewJob objects, not {kind}"
        )
    return fan.children


class Results(Mapping[str, Any]):
    """Results by name. Each is decoded when it is read.

    Reading a result that does not decode raises `CodecError`. The others can still be read.
    """

    __slots__ = ("_data", "_decode")

    def __init__(self, data: Mapping[str, bytes | None], decode: Callable[[bytes], Any]) -> None:
        self._data = data
        self._decode = decode

    def __getitem__(self, name: str) -> Any:
        data = self._data[name]
        if data is None:
            return None
        try:
            return self._decode(data)
        except Exception as error:
            raise CodecError(
                f"the result of {name!r} does not decode: {describe_error(error)}"
            ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return repr(dict(self._data))


@frozen(eq=False)
class FlowJob(Job[Any]):
    """A `Job` as the handler of a flow's stage sees it.

    `attributes` belong to the run. `results` are the results of earlier stages, by stage. A child
    also sees its parents' results. After a fan-out `children` has the results of the completed
    children by name, with `None` for one without a result. `failed` has the names of the others.
    The flow's codec decodes results. Without a codec they are bytes.
    """

    attributes: Attributes = field(default=NOTHING, repr=shortened)
    results: Mapping[str, Any] = field(default=NOTHING, repr=shortened)
    children: Mapping[str, Any] = field(default=NOTHING, repr=shortened)
    failed: tuple[str, ...] = field(default=(), repr=shortened)

    @classmethod
    def of(cls, job: Job[Any], state: FlowState | None) -> FlowJob:
        """Join *job* with the state of its run. Return `None` for a job without a run."""
        known = (job.id, job.payload, job.queue, job.headers, job.attempt, job.enqueued_at)
        if state is None:
            return cls(*known)
        return cls(*known, state.attributes, state.results, state.children, state.failed)

    def __reduce__(self) -> tuple[Any, ...]:
        known = (
            self.id,
            self.payload,
            self.queue,
            dict(self.headers),
            self.attempt,
            self.enqueued_at,
        )
        more = (dict(self.attributes), dict(self.results), dict(self.children), self.failed)
        return FlowJob, (*known, *more)


@frozen
class FlowState:
    """A run of a flow, or one of its children, by its `id`.

    `state` is running, blocked (it waits for children), completed, failed (dead, until it is
    redriven) or cancelled. `stage` is where it is or was. `pending` is the number of children that
    have not ended yet. `started_at` and `ended_at` are the run's times, in server seconds. `reason`
    says why it has failed, as its dead letter does, in at most 500 bytes. If something other than
    its own `cancel` cancelled it, `reason` says why. The other fields are as in `FlowJob`.
    """

    id: str
    state: str
    stage: str
    attributes: Attributes = field(default=NOTHING, repr=shortened)
    results: Mapping[str, Any] = field(default=NOTHING, repr=shortened)
    children: Mapping[str, Any] = field(default=NOTHING, repr=shortened)
    failed: tuple[str, ...] = field(default=(), repr=shortened)
    pending: int = 0
    started_at: float | None = None
    ended_at: float | None = field(default=None)
    reason: str | None = field(default=None)

    def __reduce__(self) -> tuple[Any, ...]:  # like a job's
        more = (dict(self.attributes), dict(self.results), dict(self.children), self.failed)
        last = (self.pending, self.started_at, self.ended_at, self.reason)
        return FlowState, (self.id, self.state, self.stage, *more, *last)


@frozen
class StageView:
    """A stage of a flow, with its `queue`. Its jobs go on to the stages in `next`, and fan out
    to those in `children`.
    """

    name: str
    queue: QueueView
    next: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


@frozen
class FlowView:
    """A flow or another group of queues, with its stages in their order. `known` is whether
    workers have declared it, so that the order is known.
    """

    name: str
    stages: tuple[StageView, ...]
    known: bool


@frozen
class RunsPage:
    """Some runs of a flow. `cursor` is where to go on, and is empty at the end. `counts` has the
    numbers of runs in each state among those that were looked at.
    """

    now: float
    flow: str
    stages: tuple[str, ...]
    runs: tuple[FlowState, ...]
    cursor: str
    counts: Mapping[str, int] = NOTHING


def has_job(state: str) -> bool:
    """Tell whether a queue has the job of a run or child in this state, '' before it comes. They
    are in no history."""
    return state not in ("", "completed", "cancelled")


@frozen
class ChildView:
    """A child of a run. Its `state` and `stage` are as in a run. `began` is common to its
    siblings, and `ended` is its own, both `None` if unknown. `job` is the state of its job in
    the queue, if that was read.
    """

    id: str
    state: str
    stage: str
    began: float | None = None
    ended: float | None = None
    job: str = ""

    @property
    def name(self) -> str:
        """Its name among its siblings."""
        return self.id.rpartition("/")[2]

    @property
    def shown(self) -> str:
        """Its state in one word. If its job was read, it is the job's state."""
        return self.job or ("going on" if self.state == "running" else self.state)

    @property
    def there(self) -> bool:
        """Whether its queue has its job."""
        return has_job(self.state)

    def took(self, now: float) -> float | None:
        """Return the seconds from its begin to its end, or to *now*."""
        until = self.ended if self.state not in ("running", "blocked") else now
        return None if self.began is None or until is None else max(0.0, until - self.began)


@frozen
class RunView(FlowState):
    """A run or a child of one, with the stages that it has `passed` in this order, and its seconds
    in each. `took` is the seconds in its present or last `stage`. A time is `None` if it is
    unknown. `parts` are its children, and `whole` is whether these are all of them. `job` is the
    state of its job in the queue while it goes on. `now` is the time of the reading.
    """

    passed: Mapping[str, float | None] = field(factory=dict[str, "float | None"])
    since: float | None = None
    """When it came to its present stage, or had left its last."""
    parts: tuple[ChildView, ...] = ()
    now: float = 0.0
    job: str = ""
    whole: bool = True

    @classmethod
    def of(
        cls,
        state: FlowState,
        began: float | None,
        ends: Mapping[str, float],
        parts: Sequence[ChildView],
    ) -> RunView:
        """Join a state with the times at which its job `began`, and left stages."""
        goes_on = state.state in ("running", "blocked")
        passed: dict[str, float | None] = {}
        if "/" not in state.id:  # it left them before this version wrote when
            passed = {
                stage: None for stage in state.results if stage not in ends and stage != state.stage
            }
        since = None if passed else began
        for stage, at in sorted(ends.items(), key=lambda end: (end[1], end[0] == state.stage)):
            if stage != state.stage or not goes_on:
                passed[stage] = None if since is None else max(0.0, at - since)
                since = at
        known = (state.attributes, state.results, state.children, state.failed, state.pending)
        end = (state.started_at, state.ended_at, state.reason)
        return cls(state.id, state.state, state.stage, *known, *end, passed, since, tuple(parts))

    @property
    def there(self) -> bool:
        """Whether its queue has its job."""
        return has_job(self.state)

    @property
    def took(self) -> float | None:
        """The seconds in its present or last stage."""
        if self.state not in ("running", "blocked"):
            return self.passed.get(self.stage)
        return None if self.since is None else max(0.0, self.now - self.since)
