"""Queues of a type under `mypy --strict` and pyright. Wrong ones are in `wrong_payloads.py`. The
file is never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, assert_type

import attrs
import msgspec

from headrace import (
    AsyncLease,
    AsyncQueue,
    AsyncReceipt,
    AsyncWorker,
    Job,
    JobState,
    Lease,
    NewJob,
    Queue,
    Receipt,
    Worker,
)
from headrace.codecs import (
    Codec,
    Compressed,
    DirectoryStore,
    Encrypted,
    JSONCodec,
    MsgpackCodec,
    Offloaded,
    PydanticCodec,
)


@dataclass
class Mail:
    to: str
    cc: Sequence[str] = ()


@attrs.frozen
class Point:
    x: float


class Order(msgspec.Struct):
    number: int


class Row(TypedDict):
    id: int


class Pair(NamedTuple):
    left: int
    right: str


class Reversed:
    """A codec of the user's own."""

    def encode(self, payload: str) -> bytes:
        return payload[::-1].encode()

    def decode(self, data: bytes) -> str:
        return data.decode()[::-1]


# -- codecs ----------------------------------------------------------------------------------------

KEYS = {"2026": bytes(32)}
STORE = DirectoryStore(Path("payloads"))

assert_type(JSONCodec(), JSONCodec[Any])
assert_type(JSONCodec(Mail), JSONCodec[Mail])
assert_type(MsgpackCodec(Point), MsgpackCodec[Point])
assert_type(PydanticCodec(Mail), PydanticCodec[Mail])
assert_type(JSONCodec(Row), JSONCodec[Row])
assert_type(JSONCodec(Pair), JSONCodec[Pair])
assert_type(JSONCodec(list[Order]), JSONCodec[list[Order]])
assert_type(JSONCodec[Mail | None](Mail | None), JSONCodec[Mail | None])
assert_type(Compressed(JSONCodec(Mail)), Compressed[Mail])
assert_type(Compressed(), Compressed[bytes])
assert_type(Encrypted(None, KEYS), Encrypted[bytes])
assert_type(Offloaded(None, STORE, over=1 << 20), Offloaded[bytes])
everything = Encrypted(Compressed(MsgpackCodec(Mail), level=9, threshold=100), KEYS)
assert_type(everything, Encrypted[Mail])
assert_type(Offloaded(everything, STORE), Offloaded[Mail])
assert_type(everything.decode(b""), Mail)
mine: Codec[str] = Reversed()
some: Codec[Mail] = everything
any_codec: Codec = everything

# -- queues ----------------------------------------------------------------------------------------

mails = Queue("mails", codec=JSONCodec(Mail))
assert_type(mails, Queue[Mail])
assert_type(Queue("plain"), Queue[bytes])
assert_type(Queue("plain", codec=None, lease=5), Queue[bytes])
assert_type(Queue("any", codec=JSONCodec()), Queue[Any])
assert_type(Queue("mine", codec=Reversed()), Queue[str])
assert_type(Queue("rows", codec=JSONCodec(Row)), Queue[Row])
assert_type(AsyncQueue("mails", codec=everything), AsyncQueue[Mail])
assert_type(AsyncQueue("plain"), AsyncQueue[bytes])


def made(codec: Codec[Mail], whatever: Codec) -> Queue[Mail]:
    assert_type(Queue("any", codec=whatever), Queue[Any])
    return Queue("mails", codec=codec, max_attempts=5)


def producing(rows: Queue[Row], generated: Iterable[Mail]) -> None:
    assert_type(mails.enqueue(Mail("ada"), id="a", delay=5), Receipt)
    mails.enqueue(NewJob(Mail("ada"), id="a"))
    assert_type(mails.enqueue_many([Mail("ada"), NewJob(Mail("ben"), delay=5)]), list[Receipt])
    mails.enqueue_many(generated)
    mails.enqueue_many(Mail(name) for name in ("ada", "ben"))
    mails.admin.schedule("daily", Mail("ada"), every=60)
    assert_type(mails.admin.cancel_payload(Mail("ada")), int)
    rows.enqueue({"id": 5})
    rows.enqueue_many([{"id": 5}, {"id": 6}])


def leasing() -> None:
    lease = mails.lease()
    assert_type(lease, Lease[Mail] | None)
    assert lease is not None
    assert_type(lease.job, Job[Mail])
    assert_type(lease.job.payload, Mail)
    assert_type(mails.lease_many(5), list[Lease[Mail]])
    assert_type(
        mails.complete(
            lease, result={"any": 1}, then=[NewJob(Mail("ben")), NewJob(5, queue="a/b")]
        ),
        bool,
    )
    mails.complete_many(mails.lease_many(5))
    assert_type(mails.admin.peek(), Job[Mail] | None)
    assert_type(mails.find("a"), JobState[Mail] | None)
    assert_type(mails.admin.dead(), Iterator[JobState[Mail]])
    assert_type(mails.admin.ended(), Iterator[JobState[Mail | None]])


async def asynchronously(queue: AsyncQueue[Mail]) -> None:
    assert_type(await queue.enqueue(Mail("ada")), AsyncReceipt)
    await queue.enqueue_many([Mail("ada"), NewJob(Mail("ben"))])
    lease = await queue.lease()
    assert_type(lease, AsyncLease[Mail] | None)
    assert lease is not None
    assert_type(lease.job.payload, Mail)
    assert_type(await queue.lease_many(5), list[AsyncLease[Mail]])
    await queue.complete(lease, b"x")
    assert_type(await queue.admin.peek(), Job[Mail] | None)
    assert_type(queue.admin.waiting(), AsyncIterator[JobState[Mail]])
    await queue.admin.schedule("daily", Mail("ada"), every=60)
    await queue.admin.cancel_payload(Mail("ada"))


# -- bytes, by default -----------------------------------------------------------------------------


def plain(queue: Queue, job: Job, lease: Lease, new: NewJob) -> None:
    assert_type(queue, Queue[bytes])
    assert_type(job.payload, bytes)
    assert_type(lease.job.payload, bytes)
    assert_type(new.payload, bytes)
    assert_type(NewJob(Mail("ada")), NewJob[Mail])
    queue.enqueue("text")
    queue.enqueue(memoryview(b"x"))
    queue.enqueue_many([b"x", "text", NewJob("text"), new])
    queue.admin.schedule("s", "text", every=5)


def whatever(queue: Queue[Any]) -> None:
    queue.enqueue({"any": "object"})
    queue.enqueue_many([1, b"x", NewJob(None)])


# -- handlers --------------------------------------------------------------------------------------

worker, async_worker = Worker(), AsyncWorker()


@worker.handler("mails", codec=JSONCodec(Mail))
def send(job: Job[Mail]) -> str:
    return job.payload.to


@async_worker.batch_handler("mails", codec=everything)
async def ingest(jobs: Sequence[Job[Mail]]) -> None:
    print([job.payload.to for job in jobs])
