"""Enqueueing of many jobs to a sharded queue, in parts. Each part goes to one shard."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from attrs import frozen

from headrace._core.effects import Call, Now, Overlap
from headrace._core.queue.calls import said_what_is_in
from headrace._core.queue.conditional import Elsewhere, admit
from headrace._core.shards.map import ShardMap, named
from headrace._model import checks
from headrace._model.checks import Context
from headrace._model.job import NewJob, is_new
from headrace._model.policy import Durability
from headrace._model.receipt import Receipt
from headrace._model.shards import Sealed
from headrace._protocol.durability import with_durability
from headrace._protocol.features.conditions import Admission, Item
from headrace._protocol.keys import job_id, job_key
from headrace._protocol.limits import JOBS_PER_SCRIPT
from headrace._protocol.op import Op
from headrace._protocol.shards import ShardOps
from headrace.errors import NotDurable, QueueFull


@frozen
class _Chunk:
    ops: ShardOps
    places: Sequence[int]  # of these jobs among all
    load: Any  # what the call that adds them takes
    free: bool  # any shard may take them


# The two ways to add jobs: to shards without a bound on waiting jobs, and with one.


@frozen
class Freely:
    context: Context | None
    durable: Durability | None

    def most(self, map: ShardMap) -> int:  # noqa: ARG002 - any shard takes as many
        return JOBS_PER_SCRIPT

    def cut(self, ops: ShardOps, jobs: Sequence[Any]) -> Iterator[tuple[Op[Any], int]]:
        for op in ops.batches(jobs, self.context):
            yield op, len(op.items)

    def add(self, map: ShardMap, part: _Chunk, ahead: Sequence[_Chunk]) -> Call[list[Receipt]]:  # noqa: ARG002 - as below
        receipts: list[Receipt] = yield from Overlap(
            with_durability(part.load, self.durable), partial(_pack, ahead)
        )
        return receipts


@frozen
class AsRoomIs:
    context: Context | None
    admission: Admission
    limit: float | None  # as for `admit`, and *since*
    since: float | None

    def most(self, map: ShardMap) -> int:
        return self.admission.at(map.at(map.table.any_of(map.sealed)[0].number)).most_together

    def cut(self, ops: ShardOps, jobs: Sequence[Any]) -> Iterator[tuple[list[Item], int]]:
        for items in self.admission.at(ops).chunks(jobs, self.context):
            yield items, len(items)

    def add(self, map: ShardMap, part: _Chunk, ahead: Sequence[_Chunk]) -> Call[list[Receipt]]:  # noqa: ARG002 - as above
        if part.free:
            return admit_anywhere(map, self.admission, part.load, self.limit, since=self.since)
        return admit(self.admission.at(part.ops), part.load, self.limit, since=self.since)


def admit_anywhere(
    map: ShardMap,
    admission: Admission,
    items: Sequence[Item],
    limit: float | None,
    *,
    since: float | None = None,
    together: bool = True,
) -> Call[list[Receipt]]:
    """Add *items* without key and id to one shard that has room, as `admit`. If no shard has room,
    wait for one of them, and ask the others again each second. Only items that a script refused go
    to another shard.
    """
    start = (yield from Now()) if since is None else since
    if not map.known:
        yield from map.look()

    def add(
        ops: ShardOps, limit: float | None, elsewhere: Elsewhere | None = None
    ) -> Call[list[Receipt]]:
        here = admission.at(ops)
        return admit(here, items, limit, since=start, together=together, elsewhere=elsewhere)

    def among(shards: Sequence[ShardOps]) -> Call[list[Receipt] | None]:
        for ops in shards:
            try:
                return (yield from add(ops, None))
            except QueueFull:
                continue
            except Sealed as error:
                yield from map.refused(ops, error)
        return None

    def elsewhere(full: ShardOps) -> Call[list[Receipt] | None]:
        return among([ops for ops in map.round() if ops is not full])

    while True:
        *others, last = map.round()
        if (made := (yield from among(others))) is not None:
            return made
        try:
            return (yield from add(last, limit, partial(elsewhere, last)))
        except Sealed as error:
            yield from map.refused(last, error)


def enqueue_many(
    map: ShardMap,
    jobs: Iterable[Any],
    way: Freely | AsRoomIs,
    bind: Callable[[list[Receipt]], object],
) -> Call[list[Receipt]]:
    """Add all jobs in parts, each part to one shard. Returns their receipts. If a part fails, the
    error has `receipts` for all jobs in their order, with `None` for each job that may be missing
    from the queue.
    """
    jobs = checks.listed(jobs)
    left = deque(_divided(map, jobs, range(len(jobs)), way))  # checks all jobs
    receipts: list[Receipt | None] = [None] * len(jobs)
    late: NotDurable | None = None
    if not map.known and (yield from map.look()):
        left = deque(_divided(map, jobs, range(len(jobs)), way))
    try:
        while left:
            part = left.popleft()
            if present := (yield from _present(map, part, jobs)):
                for place in present:
                    receipts[place] = Receipt(job_id(jobs[place].id), False)
                bind([receipt for place in present if (receipt := receipts[place]) is not None])
                rest = [place for place in part.places if place not in present]
                left.extendleft(reversed(list(_batches(part.ops, jobs, rest, way))))
                continue
            try:
                made = yield from way.add(map, part, list(left)[:1])
            except NotDurable as error:
                late = error
                made = error.receipts or error.answers[0]
            except Sealed as error:
                yield from map.refused(part.ops, error)
                again = sorted(place for one in (part, *left) for place in one.places)
                left = deque(_divided(map, jobs, again, way))
                continue
            bind(made)
            if isinstance(part.places, range):
                receipts[part.places.start : part.places.stop] = made
                continue
            for place, receipt in zip(part.places, made, strict=True):
                receipts[place] = receipt
    except Exception as error:
        said_what_is_in(error, receipts)
        raise
    found = [receipt for receipt in receipts if receipt is not None]
    if late is not None:
        late.receipts = found
        raise late
    return found


def _present(map: ShardMap, part: _Chunk, jobs: Sequence[Any]) -> Call[set[int]]:
    # draining and sealed shards may have jobs with these ids
    asked: dict[int, dict[int, str]] = defaultdict(dict)
    for place in part.places if map.overlaps else ():
        if is_new(jobs[place]):
            for older in map.before(jobs[place], part.ops):
                asked[older.number][place] = job_id(jobs[place].id)
    return map.present(asked)


def _divided(
    map: ShardMap, jobs: Sequence[Any], places: Iterable[int], way: Freely | AsRoomIs
) -> Iterator[_Chunk]:
    """Yield jobs, part by part. Jobs without id and key go in full parts to one shard after the
    other."""
    consecutive = places if isinstance(places, range) and _payloads(jobs) else None
    bins: dict[int, list[int]] = defaultdict(list)
    others: list[int] = []
    for place in places if consecutive is None else ():
        name = named(jobs[place]) if is_new(jobs[place]) else None
        if name is None:
            others.append(place)
        else:
            bins[map.of(job_key(name)).number].append(place)
    for number, some in bins.items():
        yield from _batches(map.at(number), jobs, some, way)
    # saves a list of the jobs, and a look at each job
    free = others if consecutive is None else consecutive
    most = way.most(map)
    for start in range(0, len(free), most):
        yield from _batches(map.of(None), jobs, free[start : start + most], way, free=True)


def _payloads(jobs: Sequence[Any]) -> bool:
    return not any(issubclass(kind, NewJob) for kind in set(map(type, jobs)))


def _batches(
    ops: ShardOps,
    jobs: Sequence[Any],
    places: Sequence[int],
    way: Freely | AsRoomIs,
    *,
    free: bool = False,
) -> Iterator[_Chunk]:
    done = 0
    some = (
        jobs[places.start : places.stop]
        if isinstance(places, range)
        else [jobs[place] for place in places]
    )
    for load, number in way.cut(ops, some):
        yield _Chunk(ops, places[done : done + number], load, free)
        done += number


def _pack(ahead: Sequence[_Chunk]) -> None:
    for part in ahead:
        _ = part.load.body
