"""The verbs of a queue of one or more shards, as generators of effects.

A shard is a queue, and keeps every promise of a queue. A call goes to the shard of its job, or to
all shards. An answer about several shards sees each at its own instant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Generic

from attrs import Factory, define, field

from headrace._core.effects import Call, Now, hurried, send, send_all
from headrace._core.fair.leasing import leaser
from headrace._core.queue import calls
from headrace._core.queue.conditional import admit, admit_many
from headrace._core.queue.leasing import DirectLeaser
from headrace._core.shards.enqueue import AsRoomIs, Freely, admit_anywhere, enqueue_many
from headrace._core.shards.leasing import ShardedLeaser
from headrace._core.shards.map import ShardMap, named
from headrace._core.shards.transfer import Targets, hand_over
from headrace._core.steps import children
from headrace._core.steps.run import refused
from headrace._core.verbs.admin import AdminVerbs, ShardedAdmin
from headrace._core.verbs.asking import M, answers, where
from headrace._core.verbs.results import ResultVerbs, ShardedResults
from headrace._core.verbs.schedules import ScheduleVerbs, ShardedSchedules
from headrace._core.verbs.views import ShardedViews, ViewVerbs
from headrace._model.checks import Context
from headrace._model.job import Claim, NewJob
from headrace._model.policy import Durability
from headrace._model.receipt import Receipt
from headrace._model.shards import Sealed
from headrace._protocol import admin_ops
from headrace._protocol.features.conditions import Admission, Item
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.keys import job_id
from headrace._protocol.limits import COURTESY_S
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Declaration
from headrace.errors import NotDurable

Add = Callable[[Ops], Call[list[Receipt]]]  # adds a job to a shard
Bind = Callable[[list[Receipt]], object]  # lets receipts ask their queue for results


@define(eq=False)
class QueueVerbs(Generic[M]):
    map: M
    schedules: ScheduleVerbs[M] = field(
        default=Factory(lambda self: ScheduleVerbs(self.map), takes_self=True), init=False
    )
    results: ResultVerbs[M] = field(
        default=Factory(lambda self: ResultVerbs(self.map), takes_self=True), init=False
    )
    admin: AdminVerbs[M] = field(
        default=Factory(lambda self: AdminVerbs(self.map), takes_self=True), init=False
    )
    views: ViewVerbs[M] = field(
        default=Factory(lambda self: ViewVerbs(self.map), takes_self=True), init=False
    )

    def at(self, claim: Claim) -> Ops:
        return self.map.at(claim.job.shard)

    # -- producing, leasing, settling --------------------------------------------------------------

    def enqueue(self, job: NewJob[Any], add: Add, *, asks: bool) -> Call[list[Receipt]]:  # noqa: ARG002 - to one shard
        """Add one job to its shard, by *add*, unless another shard has its id. *asks* is true if
        `add` itself finds that out.
        """
        return add(self.map.ops)

    def admit(
        self,
        job: NewJob[Any],  # noqa: ARG002 - to one shard
        admission: Admission,
        item: Item,
        limit: float | None,
        *,
        asks: bool,  # noqa: ARG002 - to one shard
    ) -> Call[list[Receipt]]:
        return admit(admission, [item], limit, together=False)

    def enqueue_many(
        self, jobs: Iterable[Any], context: Context | None, bind: Bind, durable: Durability | None
    ) -> Call[list[Receipt]]:
        return calls.enqueue_many(self.map.ops, jobs, context, bind, durable)

    def admit_many(
        self,
        admission: Admission,
        jobs: Iterable[Any],
        limit: float | None,
        *,
        whole: bool,
        context: Context | None,
        bind: Bind,
    ) -> Call[list[Receipt]]:
        return admit_many(admission, jobs, limit, whole=whole, context=context, bind=bind)

    def leaser(self) -> DirectLeaser | ShardedLeaser:
        return leaser(self.map.ops)

    def complete_many(
        self,
        claims: Sequence[Claim],
        fenced: bool | None,
        results: calls.Results,
        durable: Durability | None,
    ) -> Call[list[bool]]:
        return calls.complete(self.map.ops, claims, fenced, results, durable)

    def hands_over(self, claim: Claim, then: Sequence[NewJob[Any]]) -> bool:
        return any(self.at(claim).away(job) for job in then)

    def hand_over(self, claim: Claim) -> Call[list[str]]:
        raise NotImplementedError

    # -- one job -----------------------------------------------------------------------------------

    def signal(
        self, id: str, key: str | None, name: str, by: str, value: bytes | None
    ) -> Call[str]:
        """Send a signal to a job. Its own shard is asked first, then all others, until one has it.
        Return the outcome.
        """
        own, tiers = yield from where(self.map, id, key)
        outcome = 0
        for ops in chain(*tiers):
            outcome = yield from send(step_ops.signal(ops, own, name, by, value))
            if outcome:
                break
        if outcome < 0:
            raise refused(f"signal {name!r}", outcome)
        return step_ops.SIGNAL_OUTCOMES[outcome]

    def cancel(self, id: str, key: str | None, *, cascade: bool) -> Call[bool]:
        """Cancel a job, and with *cascade* its children."""
        gone = yield from answers(self.map, id, key, admin_ops.cancel_run)
        if cascade:
            yield from children.cancel(self.map.ops, children.below(gone))
        return any(one.number for one in gone)

    # -- the whole queue ---------------------------------------------------------------------------

    def declarations(self) -> list[Op[Any]]:
        return [ops.declare(serving=False) for ops in self.map.ordered()]

    def declare(self) -> Call[tuple[list[Declaration], bool]]:
        return (yield from send_all(self.declarations())), True


@define(eq=False)
class ShardedQueue(QueueVerbs[ShardMap]):
    schedules: ScheduleVerbs[ShardMap] = field(
        default=Factory(lambda self: ShardedSchedules(self.map), takes_self=True), init=False
    )
    results: ResultVerbs[ShardMap] = field(
        default=Factory(lambda self: ShardedResults(self.map), takes_self=True), init=False
    )
    admin: AdminVerbs[ShardMap] = field(
        default=Factory(lambda self: ShardedAdmin(self.map), takes_self=True), init=False
    )
    views: ViewVerbs[ShardMap] = field(
        default=Factory(lambda self: ShardedViews(self.map), takes_self=True), init=False
    )
    _targets: Targets = field(factory=Targets, init=False)

    def declare(self) -> Call[tuple[list[Declaration], bool]]:
        if not self.map.known:
            yield from self.map.look()
        answers = list[Declaration]()
        shards = self.map.ordered()
        for ops in shards:
            if self.map.sound(ops.keys):  # jobs go to other shards while a node is silent
                with suppress(Exception):
                    answers.append(
                        (yield from hurried(send(ops.declare(serving=False)), COURTESY_S))
                    )
        return answers, len(answers) == len(shards)

    def enqueue(self, job: NewJob[Any], add: Add, *, asks: bool) -> Call[list[Receipt]]:
        if not self.map.known:
            yield from self.map.look()
        while True:
            ops = self.map.of(named(job))
            for older in self.map.before(job, ops):
                if asks:
                    with suppress(Sealed):  # the shard lacks the id
                        return (yield from add(older))
                elif (yield from send(older.present([job_id(job.id)])))[0]:
                    return [Receipt(job_id(job.id), False)]
            try:
                return (yield from add(ops))
            except Sealed as error:
                yield from self.map.refused(ops, error)

    def admit(
        self, job: NewJob[Any], admission: Admission, item: Item, limit: float | None, *, asks: bool
    ) -> Call[list[Receipt]]:
        if self.map.ops.settings.max_waiting and named(job) is None:
            return admit_anywhere(self.map, admission, [item], limit, together=False)
        return self._admit_named(job, admission, item, limit, asks=asks)

    def _admit_named(
        self, job: NewJob[Any], admission: Admission, item: Item, limit: float | None, *, asks: bool
    ) -> Call[list[Receipt]]:
        since = yield from Now()

        def add(ops: Ops) -> Call[list[Receipt]]:
            return admit(admission.at(ops), [item], limit, since=since, together=False)

        return (yield from self.enqueue(job, add, asks=asks))

    def enqueue_many(
        self, jobs: Iterable[Any], context: Context | None, bind: Bind, durable: Durability | None
    ) -> Call[list[Receipt]]:
        return enqueue_many(self.map, jobs, Freely(context, durable), bind)

    def admit_many(
        self,
        admission: Admission,
        jobs: Iterable[Any],
        limit: float | None,
        *,
        whole: bool,
        context: Context | None,
        bind: Bind,
    ) -> Call[list[Receipt]]:
        since = (yield from Now()) if whole else None
        return (
            yield from enqueue_many(
                self.map, jobs, AsRoomIs(context, admission, limit, since), bind
            )
        )

    def leaser(self) -> ShardedLeaser:
        return ShardedLeaser(self.map, self._targets)

    def complete_many(
        self,
        claims: Sequence[Claim],
        fenced: bool | None,
        results: calls.Results,
        durable: Durability | None,
    ) -> Call[list[bool]]:
        by_shard: dict[int, list[int]] = defaultdict(list)
        for place, claim in enumerate(claims):
            by_shard[claim.job.shard].append(place)
        verdicts = [False] * len(claims)
        late = None
        for number, places in by_shard.items():
            mine = [claims[place] for place in places]
            try:
                some = yield from calls.complete(
                    self.map.at(number), mine, fenced, results, durable
                )
            except NotDurable as error:
                some = error.answers
                late = error
            for place, verdict in zip(places, some, strict=True):
                verdicts[place] = verdict
        if late is not None:
            late.answers = verdicts
            raise late
        return verdicts

    def hand_over(self, claim: Claim) -> Call[list[str]]:
        return hand_over(self.map, [self.map.at(claim.job.shard)], self._targets, pages=1)
