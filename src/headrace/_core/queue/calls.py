"""Calls of several round trips, as generators of effects. They are written once for both colours.

A call yields effects, or delegates to the typed helpers of `effects`, and returns its value. This
module has no IO and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from attrs import define, evolve, field

from headrace._core.effects import Call, Now, Overlap, Sleep, send
from headrace._core.steps import children
from headrace._model.checks import Context
from headrace._model.codec import BytesCodec, keeper
from headrace._model.job import Claim, NewJob
from headrace._model.policy import Durability
from headrace._model.receipt import Receipt
from headrace._model.state import Counts, JobState, Repairs
from headrace._protocol import admin_ops, view_ops
from headrace._protocol.durability import durable_batch, with_durability
from headrace._protocol.keys import FLOW, job_id
from headrace._protocol.limits import BYTES_PER_SCRIPT, CLAIMS_PER_SCRIPT, JOBS_PER_SCRIPT
from headrace._protocol.op import Arg, Op, chunks
from headrace._protocol.queue_ops import Ops
from headrace.errors import NotDurable, StreamStopped


@define
class _Chunks:
    chunks: Iterator[Op[list[Receipt]]]
    bind: Callable[[list[Receipt]], object]
    next: Op[Callable[[], list[Receipt]]] | None = None
    unread: Callable[[], list[Receipt]] | None = None  # an answer that is not decoded yet
    receipts: list[Receipt] = field(factory=list[Receipt])

    def read(self) -> None:
        if self.unread is not None:
            made = self.unread()
            self.unread = None
            self.bind(made)
            self.receipts += made

    def prepare(self) -> None:
        if self.next is None:
            chunk = next(self.chunks, None)
            if chunk is not None:
                op: Op[Any] = chunk
                # decoded when it is called
                self.next = evolve(op, decode=partial(partial, chunk.decode))
                _ = self.next.body  # packed
        self.read()


def enqueue_many(
    ops: Ops,
    jobs: Iterable[Any],
    context: Context | None = None,
    bind: Callable[[list[Receipt]], object] = len,
    durable: Durability | None = None,
) -> Call[list[Receipt]]:
    """Add all jobs. Returns their receipts, which *bind* has processed. If a chunk fails, the error
    has the `receipts` of the earlier chunks. A chunk that is not as *durable* as asked is in the
    queue nevertheless.
    """
    made = ops.batches(jobs, context)
    sending = _Chunks(iter(made) if durable is None else durable_batch(made, durable), bind)
    sending.prepare()
    try:
        while (chunk := sending.next) is not None:
            sending.next = None
            sending.unread = yield from Overlap(chunk, sending.prepare)
            if sending.next is None:
                sending.prepare()
        sending.read()
    except Exception as error:
        if isinstance(error, NotDurable):
            (sending.unread,) = error.answers
        sending.read()
        said_what_is_in(error, sending.receipts)
        raise
    return sending.receipts


def said_what_is_in(error: Exception, receipts: Sequence[Receipt | None]) -> None:
    number = sum(receipt is not None for receipt in receipts)
    error.add_note(f"headrace: {number} jobs of this enqueue_many are in the queue: error.receipts")
    error.receipts = receipts  # type: ignore[attr-defined]  # carried by whatever error it is


JOBS_AT_ONCE = 10 * JOBS_PER_SCRIPT  # jobs that are held at most, packed while the server works
# bytes of payloads that are held, as far as they are known before encoding
BYTES_AT_ONCE = 4 * BYTES_PER_SCRIPT


@define
class BatchBuffer:
    progress: Callable[[int], object] | None
    position: int = 0
    part: list[Any] = field(factory=list[Any])
    size: int = 0  # bytes

    def full(self, job: Any) -> bool:
        """Add a job to the next part. Tell whether to send the part now."""
        payload: Any = job
        if isinstance(job, NewJob):
            payload = job.payload  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        self.part.append(job)
        self.size += len(payload) if isinstance(payload, (bytes, str)) else 0
        return len(self.part) >= JOBS_AT_ONCE or self.size >= BYTES_AT_ONCE

    def sent(self, receipts: Sequence[object]) -> None:
        self.position += len(receipts)
        self.part = []
        self.size = 0
        if self.progress is not None:
            self.progress(self.position)

    def stopped(self, cause: Exception) -> StreamStopped:
        receipts: Sequence[object] = getattr(cause, "receipts", ())
        sure = next((at for at, receipt in enumerate(receipts) if receipt is None), len(receipts))
        return StreamStopped(self.position + sure, cause)


Build = Callable[[Sequence[Claim]], Op[list[bool]]]


def each(
    build: Build,
    claims: Sequence[Claim],
    durable: Durability | None = None,
    size: Callable[[Claim], int] = lambda _: 0,
) -> Call[list[bool]]:
    """Settle *claims* in their order, in bounded scripts. Each script settles claims of one worker,
    and is as *durable* as asked. All claims are settled before `NotDurable` is raised. *size*
    returns the bytes that a claim writes.
    """
    verdicts: list[bool] = []
    late = None
    alike = (list(some) for _, some in groupby(claims, key=attrgetter("worker")))
    for chunk in (
        chunk for some in alike for chunk in chunks(some, size, CLAIMS_PER_SCRIPT, BYTES_PER_SCRIPT)
    ):
        try:
            verdicts += yield from send(with_durability(build(chunk), durable))
        except NotDurable as error:
            verdicts += error.answers[0]
            late = error
    if late is not None:
        late.answers = verdicts
        raise late
    return verdicts


Results = Mapping[tuple[int, str], bytes]  # by the shard and entry of a job


def complete(
    ops: Ops,
    claims: Sequence[Claim],
    fenced: bool | None,
    results: Results,
    durable: Durability | None,
) -> Call[list[bool]]:
    def build(some: Sequence[Claim]) -> Op[list[bool]]:
        kept = {claim.entry: results[claim.place] for claim in some if claim.place in results}
        return ops.complete(some, fenced=fenced, results=kept)

    return each(build, claims, durable, lambda claim: len(results.get(claim.place, b"")))


def cancel_payload(ops: Ops, payload: bytes, *, cascade: bool) -> Call[int]:
    number = 0
    place = "jobs"
    cursor = "-"
    while place:
        gone, place, cursor = yield from send(admin_ops.cancel_payload(ops, payload, place, cursor))
        number += gone.number
        if cascade:
            yield from children.cancel(ops, gone.children)
    return number


def repair(ops: Ops, *, dry: bool = False) -> Call[Repairs]:
    found = Repairs()
    place = "jobs"
    cursor = "-"
    while place:
        more, place, cursor = yield from send(admin_ops.repair(ops, place, cursor, dry=dry))
        found += more
    return found


def find(ops: Ops, name: str) -> Call[JobState[Any] | None]:
    found, cursor = yield from send(view_ops.seek(ops, name, ""))
    return found or (yield from find_dead(ops, name, cursor))


def replaced(ops: Ops, name: str) -> Call[str | None]:
    """Find the ticket of a dead letter whose payload is to be replaced. Return `None` if it is in
    the queue, or of a flow, whose jobs may share it.
    """
    found = (
        (yield from find(evolve(ops, codec=BytesCodec()), name))
        if keeper(ops.codec) is not None
        else None
    )
    if found is None or found.state != "dead" or FLOW in found.job.headers:
        return None
    return admin_ops.ticket(ops, found.job)


def find_dead(ops: Ops, name: str, cursor: str) -> Call[JobState[Any] | None]:
    # an empty cursor ends the search
    found = None
    paged = bool(cursor)
    while found is None and cursor:
        found, cursor = yield from send(view_ops.seek(ops, name, cursor))
    if found is None and paged:  # it may have been redriven and died meanwhile
        found, _ = yield from send(view_ops.seek(ops, name, ""))
    return found


def position(ops: Ops, name: str) -> Call[int | None]:
    before, cursor = yield from send(view_ops.position(ops, name))
    while cursor:
        more, cursor = yield from send(
            view_ops.position(ops, name, JOBS_PER_SCRIPT - before, cursor)
        )
        if more < 0:
            return None
        before += more
    return None if before < 0 else before


def purge(ops: Ops, wanted: Sequence[Arg] = ()) -> Call[int]:
    return (yield from through(lambda cursor, _: admin_ops.purge(ops, cursor, wanted), ()))


def through(
    build: Callable[[str, Sequence[str]], Op[tuple[int, str]]],
    wanted: Sequence[str],
    cursor: str = "-",
) -> Call[int]:
    done = 0
    while cursor:
        more, cursor = yield from send(build(cursor, wanted))
        done += more
    return done


def by_ids(
    build: Callable[[str, Sequence[str]], Op[tuple[int, str]]], ids: Sequence[str], size: int
) -> Call[int]:
    """Call scripts that take ids, with *size* ids at a time. Without ids, go page by page like
    `through`."""
    wanted = [*map(job_id, ids)]
    done = 0
    for start in range(0, max(1, len(wanted)), size):
        done += yield from through(build, wanted[start : start + size])
    return done


def until_done(build: Callable[[], Op[tuple[int, str]]]) -> Call[int]:
    done = 0
    more = "1"
    while more == "1":
        moved, more = yield from send(build())
        done += moved
    return done


def pauses(first: float, last: float) -> Iterator[float]:
    """Yield the pauses of a call that polls, in seconds. Each is half as long again as the one
    before, up to *last*."""
    while True:
        yield first
        first = min(last, 1.5 * first)


def drain(
    count: Callable[[], Call[Counts]], timeout: float | None, *, apart: bool = False
) -> Call[bool]:
    """Wait until only dead letters are left.

    It polls often at first, and twice a second in the end. *apart*: the counts come from different
    instants, so a job may move from a shard that is counted late to a shard that was counted early.
    The queue is empty if two counts in a row find no job, and no job came between them.
    """
    start = yield from Now()
    before: Counts | None = None
    for pause in pauses(0.02, 0.5):
        counts = yield from count()
        empty = counts.present == counts.dead
        if empty and (not apart or (before is not None and before.enqueued == counts.enqueued)):
            return True
        if empty and before is None:
            before = counts
            continue
        before = None
        left = pause if timeout is None else start + timeout - (yield from Now())
        if left <= 0:
            break
        yield Sleep(min(pause, left))
    return False
