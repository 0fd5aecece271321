"""Enqueueing under conditions, as operations. The conditions are room in the queue, and the
treatment of a job whose id exists already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attrs import evolve, field, frozen

from headrace._model.checks import Context, millis
from headrace._model.job import NewJob, is_new
from headrace._model.policy import UNIQUE, Durability, Outcome, conditional, conditions, room
from headrace._model.receipt import Receipt
from headrace._model.shards import Sealed
from headrace._protocol.durability import with_durability
from headrace._protocol.limits import BYTES_PER_SCRIPT, JOBS_PER_SCRIPT, POLL_S
from headrace._protocol.op import Arg, Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import text
from headrace.errors import QueueFull

# by their numbers
OUTCOMES: tuple[Outcome, ...] = ("present", "added", "replaced", "moved", "dropped")
# refused for lack of room; a new job in a sealed shard. 6: not looked at, for lack of time
REFUSED, SEALED = 5, 7
# seconds for which a waiting producer is notified of room; it asks again every second
AWAITS_S = 10 * POLL_S
Item = tuple[str, str, str, list[str | bytes]]  # id, delay, conditions, fields


@frozen
class Refusal:
    """The reason for a missing receipt. The queue was *full*, or time ran out. After the latter,
    send the job again."""

    full: bool
    waiting: int
    last: str


def admitted(reply: Any) -> list[Receipt | Refusal | Sealed]:
    last = text(reply[1])

    def one(name: str, number: int) -> Receipt | Refusal | Sealed:
        if number < REFUSED:
            return Receipt(name, number == 1, OUTCOMES[number])
        return Sealed(int(name)) if number == SEALED else Refusal(number == REFUSED, reply[0], last)

    return [one(text(name), number) for name, number in zip(reply[2::2], reply[3::2], strict=True)]


@frozen(eq=False)
class Admission:
    ops: Ops
    durable: Durability | None = None
    _others: dict[tuple[int, Durability | None], Admission] = field(
        factory=dict[tuple[int, Durability | None], "Admission"], init=False
    )

    def at(self, ops: Ops) -> Admission:
        """Return the maker for a shard. It is always the same object, so that calls can be
        coalesced."""
        return self._other(ops, self.durable)

    def with_durability(self, durable: Durability | None) -> Admission:
        return self._other(self.ops, durable)

    def _other(self, ops: Ops, durable: Durability | None) -> Admission:
        if ops is self.ops and durable == self.durable:
            return self
        wanted = (id(ops), durable)
        found = self._others.get(wanted)
        return self._others.setdefault(wanted, Admission(ops, durable)) if found is None else found

    @property
    def most(self) -> int:
        """The number of jobs that may wait. For a shard, this is its share. 0 means any number."""
        return room(self.ops.settings.max_waiting or 0, self.ops.share)

    @property
    def most_together(self) -> int:
        """The largest number of jobs in a part, which is a tenth of the queue. Larger parts would
        wait for an empty queue.
        """
        return min(JOBS_PER_SCRIPT, max(1, self.most // 10)) if self.most else JOBS_PER_SCRIPT

    def full(self, waiting: int) -> QueueFull:
        shard = self.ops.keys.shard
        return QueueFull(waiting, self.most, None if shard is None else shard.number)

    def item(self, job: Any, context: Context | None = None) -> Item:
        if not is_new(job):
            job = NewJob(job)
        terms = conditions(job, self.ops.settings.unique_for)
        made = self.ops.item(
            evolve(job, unique_for=None, if_exists=None) if conditional(job) else job, context
        )
        if isinstance(made, bytes):
            made = ("", "", ["data", made])
        name, delay, fields = made
        if "unique" in terms:
            fields = [*fields, UNIQUE, str(terms["unique"])]
        return name, delay, " ".join(f"{term}={ms}" for term, ms in terms.items()), fields

    def single(self, items: Sequence[Item]) -> Op[list[Receipt | Refusal | Sealed]]:
        return self._op(items, 0, together=False, join=self.single)

    def single_awaiting(self, items: Sequence[Item]) -> Op[list[Receipt | Refusal | Sealed]]:
        return self._op(items, AWAITS_S, together=False, join=self.single_awaiting)

    def chunk(self, items: Sequence[Item], *, awaits: bool) -> Op[list[Receipt | Refusal | Sealed]]:
        return self._op(items, AWAITS_S if awaits else 0, together=True)

    def _op(
        self, items: Sequence[Item], awaits: float, *, together: bool, join: Any = None
    ) -> Op[list[Receipt | Refusal | Sealed]]:
        args: list[Arg] = [self.most, millis(awaits), int(together)]
        for name, delay, terms, fields in items:
            args += (name, delay, terms, len(fields), *fields)
        op = self.ops.op("enqueue_if", args, self.ops.reading(admitted), (), items, join)
        return with_durability(op, self.durable)

    def chunks(self, jobs: Iterable[Any], context: Context | None = None) -> Iterator[list[Item]]:
        """Check all *jobs*, and cut them into parts that fit into one script and into the queue."""
        items = [self.item(job, context) for job in jobs]
        most = self.most_together
        part: list[Item] = []
        cost = size = 0
        for item in items:
            item_cost = _cost(item)
            item_size = sum(map(len, item[3]))
            if part and (
                len(part) == most
                or cost + item_cost > JOBS_PER_SCRIPT
                or size + item_size > BYTES_PER_SCRIPT
            ):
                yield part
                part = []
                cost = 0
                size = 0
            part.append(item)
            cost = cost + item_cost
            size = size + item_size
        if part:
            yield part

    def wait(self, last: str, seconds: float) -> tuple[Arg, ...]:
        """Block until there is room, at most *seconds*, reading after *last*, which the refused
        call returned."""
        milliseconds = max(1, millis(seconds))  # 0 would block for ever
        return (
            "XREAD",
            "COUNT",
            1,
            "BLOCK",
            milliseconds,
            "STREAMS",
            self.ops.keys.key("gate"),
            last,
        )


def _cost(item: Item) -> int:
    if "debounce" in item[2] or "replace" in item[2]:
        return 10
    return 5 if item[2] else 4
