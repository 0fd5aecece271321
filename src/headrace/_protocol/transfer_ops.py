"""The transfer of jobs from one shard to another. Here are the outbox of a shard, and the pure
operations on it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import field, frozen

from headrace._model.checks import LEVELS_AT_MOST
from headrace._model.shards import ShardRow
from headrace._protocol.keys import QUEUE
from headrace._protocol.limits import JOBS_PER_SCRIPT
from headrace._protocol.op import Arg, Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import raw, text

_NAME = re.compile(rf"[0-9a-f]{{1,8}} {QUEUE.pattern} \w+")
Target = tuple[str, int]  # a queue, and the number of one of its shards


@frozen
class Intent:
    name: str  # in the outbox
    args: Sequence[Arg] = field(repr=False)  # for `accept`

    @property
    def queue(self) -> str:
        return self.name.split(" ")[1]

    @property
    def nonce(self) -> str:
        return self.name.split(" ")[2]

    @property
    def check(self) -> int:
        """The CRC-32 of the job's key or id, which decides the shard."""
        return int(self.name[:8], 16)

    def closing(self, number: int) -> str:
        return f"{number} {self.queue} {self.nonce}"


@frozen
class Pending:
    next: int  # the cursor of the next page; 0: there is none
    intents: Sequence[Intent]  # jobs to send
    closing: Sequence[str]  # names of arrived jobs to close


@frozen
class Accepted:
    taken: bool  # the shard has the jobs
    now: int  # ms of its clock
    replicas: int  # of its node; -1: there is none now, but was one lately
    # positions of jobs that it lacks and refuses, as it is sealed
    refused: frozenset[int] = frozenset()


def closing_target(name: str) -> Target | None:
    number, _, rest = name.partition(" ")
    queue, _, nonce = rest.partition(" ")
    return (
        (queue, int(number))
        if _readable(f"0 {queue} {nonce}") and re.fullmatch(r"\d{1,6}", number)
        else None
    )


def _readable(name: Any) -> str | None:
    known = text(name)
    return known if _NAME.fullmatch(known) else None  # otherwise the name is foreign


def _intents(rows: Any) -> Iterator[Intent]:
    for name, job, delay, fields in rows:
        if (known := _readable(name)) is not None:
            yield Intent(known, [raw(job), raw(delay), len(fields), *map(raw, fields)])


def hand(
    ops: Ops,
    cursor: int = 0,
    arrived: Sequence[tuple[str, str]] = (),
    closed: Sequence[str] = (),
    skipped: Sequence[ShardRow] = (),
) -> Op[Pending]:
    """Record the jobs that have *arrived* (names in the outbox, and for closing) and the *closed*
    transfers. Return the jobs to send, except for *skipped* shards.
    """

    def decode(reply: Any) -> Pending:
        following, rows, closing = reply
        return Pending(following, list(_intents(rows)), list(map(text, closing)))

    args: list[Arg] = [cursor, JOBS_PER_SCRIPT, len(arrived), len(closed)]
    for names in arrived:
        args += names
    args += closed
    for shard in skipped:
        args += (str(shard.number), shard.first, shard.last)
    return ops.op("hand", args, decode)


def accept(ops: Ops, since: int, intents: Sequence[Intent]) -> Op[Accepted]:
    """Add jobs to the shard of *ops*, each once. *since* is a time of that shard from before the
    jobs were read."""
    args: list[Arg] = [since]
    for intent in intents:
        args += (intent.nonce, *intent.args)

    def decode(reply: Any) -> Accepted:
        taken, now, replicas, refused = reply
        return Accepted(taken == 1, now, replicas, frozenset(place - 1 for place in refused))

    return ops.op("accept", args, decode, ops.keys.levels(LEVELS_AT_MOST))


def close(ops: Ops, nonces: Sequence[str]) -> Op[int]:
    return ops.op("close", list(nonces), int)


def jobs_in_outbox(ops: Ops) -> Op[int]:
    return ops.op("handing", [], int)
