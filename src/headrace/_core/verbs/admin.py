"""The verbs by which operators change a queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic

from attrs import define

from headrace._core.effects import Call, send_all
from headrace._core.fair.declaring import redeclare
from headrace._core.fair.shares import wanted
from headrace._core.queue import calls
from headrace._core.queue.bulk import Choose, Match, bulk
from headrace._core.shards.map import ShardMap
from headrace._core.shards.reshard import checked, reshard
from headrace._core.verbs.asking import M, each, every, total
from headrace._model.settings import QueueSettings
from headrace._model.shards import Resharding, apart, shard_count
from headrace._model.state import JobState, Repairs
from headrace._model.steps import step_name
from headrace._model.verbs import Bulk
from headrace._protocol import admin_ops
from headrace._protocol.features import fair as fair_ops, presence as presence_ops
from headrace._protocol.features.presence import Request
from headrace._protocol.keys import job_id
from headrace._protocol.limits import JOBS_PER_SCRIPT, LOOKS_PER_SCRIPT, REWRITES_PER_SCRIPT
from headrace._protocol.op import Arg
from headrace._protocol.queue_ops import Delay, Ops
from headrace.errors import ConfigurationError, HeadraceError


@define(eq=False)
class AdminVerbs(Generic[M]):
    map: M

    def reschedule(self, id: str, delay: Delay) -> Call[bool]:
        return each(self.map, id, None, lambda ops, name: admin_ops.reschedule(ops, name, delay))

    def reshard(self, shards: int | None) -> Call[Resharding]:  # noqa: ARG002 - it refuses
        raise ConfigurationError(
            f"queue {self.map.ops.keys.queue!r} has no shards, and can't get any: use another, with shards="
        )

    def cancel_payload(self, payload: bytes, *, cascade: bool) -> Call[int]:
        return total(self.map, lambda ops, _: calls.cancel_payload(ops, payload, cascade=cascade))

    def redrive(
        self, ids: Sequence[str], from_step: str | None = None, payload: Any = ...
    ) -> Call[int]:
        """Send dead letters back to their shards, except if their ids are taken in a shard of the
        same range. With *from_step*, a single run does that step, and all after it, again.
        *payload* replaces the payload of a single job, and `...` keeps its own.
        """
        if from_step is None and payload is ...:
            return total(self.map, self._redrive, ids)
        name = "" if from_step is None else step_name(from_step)
        if len(ids) != 1:
            option = f"from_step={name!r}" if name else "payload="
            raise ValueError(f"{option} with {len(ids)} ids: give the id of one job")
        mended = (
            None if payload is ... else admin_ops.payload_of(self.map.ops, job_id(ids[0]), payload)
        )
        return total(self.map, lambda ops, some: self._redrive_one(ops, some, name, mended), ids)

    def _redrive_one(
        self, ops: Ops, some: Sequence[str], name: str, payload: bytes | None
    ) -> Call[int]:
        choose = self._chooser(ops, "redrive", some)
        if choose is not None:
            found = yield from calls.find(ops, some[0])
            if found is None or not all((yield from choose([found]))):
                return 0
        ticket = None if payload is None else (yield from calls.replaced(ops, some[0]))
        one = partial(admin_ops.redrive, ops, from_step=name, payload=payload, ticket=ticket)
        return (yield from calls.by_ids(one, some, 1))

    def _redrive(self, ops: Ops, some: Sequence[str]) -> Call[int]:
        return calls.by_ids(partial(admin_ops.redrive, ops), some, JOBS_PER_SCRIPT)

    def _chooser(self, ops: Ops, action: str, some: Sequence[str] = ()) -> Choose | None:  # noqa: ARG002 - to one shard
        """Return the function that chooses which dead letters, of *some* ids or all, may be
        redriven. It is `None`, as all may, unless other shards share the range of this shard.
        """
        return None

    def purge_dead(self, ids: Sequence[str]) -> Call[int]:
        return total(
            self.map,
            lambda ops, some: calls.by_ids(
                partial(admin_ops.purge_dead, ops), some, JOBS_PER_SCRIPT
            ),
            ids,
        )

    def expire(self, ids: Sequence[str]) -> Call[int]:
        return total(
            self.map,
            lambda ops, some: calls.by_ids(partial(admin_ops.expire, ops), some, LOOKS_PER_SCRIPT),
            ids,
        )

    def move(self, to: str, ids: Sequence[str]) -> Call[int]:
        """Move waiting jobs to another queue. A job of a sharded queue goes to the shard of the
        same number."""
        return total(
            self.map,
            lambda ops, some: calls.by_ids(
                partial(admin_ops.move, ops, to), some, 2 * REWRITES_PER_SCRIPT
            ),
            ids,
        )

    def bulk(self, action: str, state: str, match: Match, cursor: str) -> Call[Bulk]:
        number, _, inner = str(cursor).partition(":") if cursor else ("0", "", "")
        if not number.isdigit():
            raise ValueError(f"cursor {cursor!r:.100}: give that of the step before")
        yield from self.map.look()
        shards = [ops for ops in self.map.ordered() if ops.number >= int(number)]
        if not shards:
            raise ValueError(f"cursor {cursor!r:.100}: give that of the step before")
        ops = shards[0]
        inner = inner if shards[0].number == int(number) else ""
        step = yield from bulk(ops, action, state, match, inner, self._chooser(ops, action))
        next_shard = f"{shards[1].number}:" if shards[1:] else ""
        after = f"{ops.number}:{step.cursor}" if step.cursor else next_shard
        return Bulk(step.looked, step.matched, step.done, after)

    def purge(self, value: object = None) -> Call[int]:
        some: Sequence[Arg] = ()
        if value is not None:
            yield from self.map.look()
            some = yield from wanted(self.map.ordered(), value)
        return (yield from total(self.map, lambda ops, _: calls.purge(ops, some)))

    def delete(self) -> Call[int]:
        return total(self.map, lambda ops, _: calls.until_done(partial(admin_ops.delete, ops)))

    def pause(self, pause: bool, value: object = None) -> Call[bool]:
        """Pause or resume all shards, or a *value* in them. Return false if all of them were in
        that state already."""
        changed = False
        yield from self.map.look()
        some = yield from wanted(self.map.ordered(), value)
        while True:
            table = self.map.table
            sent = [
                fair_ops.pause(ops, some, pause) if some else admin_ops.pause(ops, pause)
                for ops in self.map.ordered()
            ]
            changed |= any((yield from send_all(sent)))
            if not (yield from self.map.look(table)):  # otherwise some shards were not reached
                return changed

    def fail_worker(self, name: str) -> Call[int]:
        return total(
            self.map, lambda ops, _: calls.until_done(lambda: admin_ops.fail_worker(ops, name))
        )

    def ask_worker(self, name: str, request: Request) -> Call[bool]:
        """Ask workers of this name for something, in all shards. Raises `HeadraceError` if none can
        be asked."""
        answers = yield from every(self.map, lambda ops: presence_ops.ask(ops, name, request))
        asked = sum(one for one, _ in answers)
        unable = sum(one for _, one in answers)
        if unable and not asked:
            raise HeadraceError(
                f"worker {name} has reported nothing, so it cannot be asked: it has started a moment ago, or runs an "
                "older version of headrace; end its process by a signal"
            )
        return asked > 0

    def set_concurrency(self, number: int | None) -> Call[None]:
        yield from every(self.map, lambda ops: presence_ops.set_concurrency(ops, number))

    def repair(self, *, dry: bool = False) -> Call[Repairs]:
        yield from self.map.look()
        found = Repairs()
        for ops in self.map.ordered():
            found += yield from calls.repair(ops, dry=dry)
        return found

    def redeclare(self, settings: QueueSettings) -> Call[None]:
        yield from self.map.look()
        yield from redeclare(self.map.ordered(), settings)


@define(eq=False)
class ShardedAdmin(AdminVerbs[ShardMap]):
    def _redrive(self, ops: Ops, some: Sequence[str]) -> Call[int]:
        choose = self._chooser(ops, "redrive", some)
        cursor = ""
        done = 0
        if choose is None:
            return (yield from super()._redrive(ops, some))
        while True:
            step = yield from bulk(ops, "redrive", "dead", Match(), cursor, choose)
            done = done + step.done
            cursor = step.cursor
            if not cursor:
                return done

    def _chooser(self, ops: Ops, action: str, some: Sequence[str] = ()) -> Choose | None:
        return (
            partial(self._free, ops, frozenset(some))
            if action == "redrive" and self.map.overlaps
            else None
        )

    def _free(
        self, ops: Ops, some: frozenset[str], found: Sequence[JobState[Any]]
    ) -> Call[Sequence[bool]]:
        """Tell for each *found* job whether its id is one of *some*, if any are given, and in no
        other shard."""
        names = [apart(one.job.id) for one in found]
        free = [not some or name in some for name, _ in names]
        asked: dict[int, dict[int, str]] = defaultdict(dict)
        for place, one in enumerate(found):
            if free[place] and names[place][1] is None:  # one that was given no id is nowhere else
                for other in self.map.sharing(one.job.key or one.job.id, ops):
                    asked[other.number][place] = names[place][0]
        taken = yield from self.map.present(asked)
        return [one and place not in taken for place, one in enumerate(free)]

    def reshard(self, shards: int | None) -> Call[Resharding]:
        return reshard(self.map, None if shards is None else checked(shard_count(shards)))
