"""The operations of sharded queues, on each shard and on the table. They are pure."""

from __future__ import annotations

import secrets
from binascii import crc32
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from typing import Any, TypeVar, cast

from attrs import evolve, frozen

from headrace._model.checks import LEVELS_AT_MOST, Context
from headrace._model.codec import Codec
from headrace._model.job import KEY, Anonymous, Claim, NewJob, ShardedName, is_new
from headrace._model.receipt import is_receipt, receipts
from headrace._model.shards import ShardRow, Table, Totals, apart, is_entry
from headrace._model.state import JobState
from headrace._protocol.every_op import EveryOp
from headrace._protocol.jobs import Jobs
from headrace._protocol.keys import Keys
from headrace._protocol.op import Arg, Op
from headrace._protocol.queue_ops import Item, Ops
from headrace._protocol.replies import plain_ids, plain_receipts, text
from headrace._protocol.script import script
from headrace.errors import ConfigurationError

T = TypeVar("T")
_ORDER = count()  # orders the nonces of one program by when they were drawn


def table(
    keys: Keys,
    rows: dict[str, str] | None = None,
    known: int | None = None,
    queues: int | None = None,
    *,
    note: bool = True,
) -> Op[dict[str, str]]:
    """Read the table of shards, and *note* in it that this queue is used. With *rows*, first
    replace the table's version *known*, if it notes *queues* queues. *known* is `None` for a
    missing table.
    """
    args: list[Arg] = [
        keys.queue if note else "",
        "" if known is None else str(known),
        "" if queues is None else str(queues),
    ]

    def decode(reply: Any) -> dict[str, str]:
        words = list(map(text, reply))
        return dict(zip(words[::2], words[1::2], strict=True))

    return Op(
        "shards", script("shards"), [keys.shards], [*args, *chain(*(rows or {}).items())], decode
    )


class ShardJobs(Jobs):
    """Decoder for the jobs of one shard. A job without an id of its own is named by its entry and
    the shard."""

    def __init__(self, queue: ShardedName, codec: Codec[Any]) -> None:
        super().__init__(queue, codec, f"@{queue.shard}")
        self._shard = queue.shard

    def placed(self, claim: Claim) -> None:
        """Add the shard to the id of a job that was enqueued without one. A job that was sent to
        the back keeps the id of its first entry.
        """
        if claim.named and is_entry(claim.job.id):
            object.__setattr__(claim.job, "id", Anonymous.at(claim.job.id, self._shard))
        super().placed(claim)

    def state(self, row: Any, now: int) -> JobState[Any]:
        found = super().state(row, now)
        if is_entry(found.job.id):
            object.__setattr__(found.job, "id", Anonymous.at(found.job.id, self._shard))
        return found


@frozen
class ShardConfig:
    paused: bool
    fields: Sequence[bytes | str]  # of its stats


@frozen
class Drained:
    seconds: float | None  # for which the queue has been empty there; `None`: it is not empty
    entries: int  # jobs in line
    totals: Totals  # of the shard


def drained(reply: Any) -> Drained:
    since, entries, *totals = reply
    return Drained(None if since < 0 else since / 1000, entries, cast("Totals", tuple(totals)))


@frozen
class BaseShardOps(Ops):
    def item(self, job: Any, context: Context | None = None) -> bytes | Item:
        if is_new(job):
            _routed(job)
            _unlike_an_entry(job)
        return super().item(job, context)


@frozen
class ShardOps(BaseShardOps):
    table: Table | None = None

    @property
    def shard(self) -> ShardRow:
        assert self.keys.shard is not None  # noqa: S101
        return self.keys.shard

    @property
    def number(self) -> int:
        return self.shard.number

    @property
    def share(self) -> float:
        return self.shard.share

    @property
    def decoder(self) -> Jobs:
        return ShardJobs(cast("ShardedName", self.keys.queue), self.bound)

    def reading(self, decode: Callable[[Any], T]) -> Callable[[Any], T]:
        number = self.shard.number
        if decode is plain_receipts:  # a thousand receipts at once

            def many(reply: Any) -> Any:
                return receipts(plain_ids(reply, f"@{number}"))

            return many

        def read(reply: Any) -> T:
            made = decode(reply)
            _at_shard(made, number)
            return made

        return read

    def of(self, queue: str) -> ShardOps:
        return evolve(self, keys=self._near("queue", queue))

    def present(self, names: Sequence[str]) -> Op[list[bool]]:
        """Ask which of at most 1,000 ids are taken."""
        return self.op("present", list(names), lambda reply: [bool(yes) for yes in reply])

    def seal(self, version: int) -> Op[ShardConfig]:
        """Seal the queue in this shard from *version* of the table on. Then it takes no new jobs.
        *version* 0 only asks.
        """
        return self.op("seal", [version], lambda reply: ShardConfig(bool(reply[0]), reply[1:]))

    def inherit(self, fields: Sequence[bytes | str]) -> Op[int]:
        return self.op("inherit", list(fields), int)

    def hand_schedule(self, name: str) -> Op[tuple[int, bytes | str, Sequence[bytes | str]] | None]:
        """Suspend a schedule that another shard takes over. The answer is its next tick in ms, its
        stored data, and the sets of declared schedules that contain it.
        """
        return self.op(
            "hand_schedule",
            [name],
            lambda reply: (int(reply[0]), reply[1], reply[2:]) if reply else None,
        )

    def take_schedule(
        self, name: str, due: int, kept: bytes | str, sets: Sequence[bytes | str] = ()
    ) -> Op[bool]:
        """Take over a schedule, unless one of that name exists."""
        return self.op("take_schedule", [name, due, kept, *sets], bool)

    def drained(self) -> Op[Drained]:
        return self.op("drained", [], drained, priorities=LEVELS_AT_MOST)

    def wipe(self) -> Op[bool]:
        return self.op("wipe", [], bool, priorities=LEVELS_AT_MOST)

    def follow(
        self, job: NewJob[Any], there: Keys | None = None
    ) -> tuple[Keys, str, str, list[str | bytes]]:
        """Check a follow-up. It may belong to any shard, of this queue or of another queue in the
        group."""
        made = super().follow(job, there)
        _routed(job)
        _unlike_an_entry(job)
        return made

    def away(self, job: NewJob[Any]) -> str:
        """Name a follow-up whose key or id belongs to another shard. Without both it stays in this
        shard."""
        named = job.id if job.key is None else job.key
        if named is None or self.shard.covers(named):
            return ""
        return name_of(
            named, job.queue or str(self.keys.queue), f"{next(_ORDER):08x}{secrets.token_hex(10)}"
        )

    def _near(self, what: str, queue: str) -> Keys:
        keys = Keys.of(queue, self.namespace)
        if self.table is not None and keys.group != self.table.group:
            raise ConfigurationError(
                f"{what} {queue!r} is of group {keys.group!r}, this one of {self.table.group!r}; "
                "one script reaches one group only: name both queues '<group>/<part>', or enqueue it yourself"
            )
        return keys.at(self.shard)

    def target(self, to: str) -> Keys:
        return self._near("to", to)


def name_of(named: str, queue: str, nonce: str) -> str:
    """Name a job in an outbox by its key or id, which decides its shard, and by a unique nonce."""
    return f"{crc32(named.encode()):08x} {queue} {nonce}"


def _at_shard(made: Any, number: int) -> None:
    some: Any = made if hasattr(made, "__iter__") else (made,)
    for one in some:
        if is_receipt(one) and is_entry(one.id):
            object.__setattr__(one, "id", f"{one.id}@{number}")


def _routed(job: NewJob[Any]) -> None:
    if isinstance(job.headers, Mapping) and job.headers.get(KEY, job.key) != job.key:
        raise ValueError(f"headers: {KEY!r}: give key= the same, which decides the job's shard")


def _unlike_an_entry(job: NewJob[Any]) -> None:
    if isinstance(job.id, str) and is_entry(apart(job.id)[0]):
        raise ValueError(
            f"id {job.id!r}: in a sharded queue these are the ids of jobs that were given none: leave it out to add "
            "the job again, redrive() it where it is dead, or choose one of another form than <digits>-<digits>"
        )


@frozen
class WholeOps(BaseShardOps, EveryOp):
    """The settings and checks of a whole sharded queue. It makes no operations, as a script reaches
    one shard."""

    shards: int = 1

    def op(self, name: str, *_: Any, **__: Any) -> Op[Any]:
        raise ConfigurationError(
            f"queue {self.keys.queue!r} has {self.shards} shards, and {name} reaches one: it is not for whole sharded "
            "queues; Queue(…, shards=…) has methods for these"
        )

    def wait(self, block: float, *, paused: bool = False) -> tuple[Arg, ...]:  # noqa: ARG002 - it refuses
        self.op("wait")
        return ()


def shard_ops(ops: Ops, table: Table, part: ShardRow) -> ShardOps:
    return ShardOps(ops.keys.at(part), ops.settings, ops.codec, ops.namespace, ops.servers, table)
