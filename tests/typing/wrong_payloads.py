"""Payloads of a wrong type that a type checker must refuse. A missed one is an unused ignore. The
file is never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any

from payloads import Mail, Order, Reversed, Row, mails

from headrace import AsyncQueue, Job, Lease, NewJob, Queue
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


def to_a_queue_of_mails(order: Order) -> None:
    mails.enqueue(order)  # type: ignore[arg-type]
    mails.enqueue(b"x")  # type: ignore[arg-type]
    mails.enqueue("text", id="a")  # type: ignore[arg-type]
    mails.enqueue({"to": "ada"})  # type: ignore[arg-type]
    mails.enqueue(None)  # type: ignore[arg-type]
    mails.enqueue(NewJob(order))  # type: ignore[arg-type]
    mails.enqueue_many([order])  # type: ignore[list-item]
    mails.enqueue_many([Mail("ada"), b"x"])  # type: ignore[list-item]
    mails.enqueue_many(Mail("ada"))  # type: ignore[arg-type]
    mails.admin.schedule("s", order, every=5)  # type: ignore[arg-type]
    mails.admin.cancel_payload(b"x")  # type: ignore[arg-type]


def to_a_queue_of_bytes(queue: Queue) -> None:
    queue.enqueue(5)  # type: ignore[call-overload]
    queue.enqueue({"to": "ada"})  # type: ignore[call-overload]
    queue.enqueue(Mail("ada"))  # type: ignore[call-overload]
    queue.enqueue(NewJob(5))  # type: ignore[arg-type]
    queue.enqueue_many([5])  # type: ignore[list-item]
    queue.admin.schedule("s", 5, every=5)  # type: ignore[call-overload]
    queue.admin.cancel_payload(None)  # type: ignore[call-overload]


async def asynchronously(queue: AsyncQueue[Mail], plain: AsyncQueue, order: Order) -> None:
    await queue.enqueue(order)  # type: ignore[arg-type]
    await queue.enqueue_many([order])  # type: ignore[list-item]
    await queue.admin.schedule("s", b"x", every=5)  # type: ignore[arg-type]
    await plain.enqueue(order)  # type: ignore[call-overload]


def to_a_queue_of_rows(rows: Queue[Row]) -> None:
    rows.enqueue({"id": "5"})  # type: ignore[arg-type]
    rows.enqueue({})  # type: ignore[arg-type]


def kinds_of_queues() -> None:
    one: Queue[Mail] = Queue("q")  # type: ignore[assignment]
    orders = JSONCodec(Order)
    two: Queue[Mail] = Queue("q", codec=orders)  # type: ignore[arg-type]
    three: Queue = Queue("q", codec=Reversed())  # type: ignore[arg-type]
    four: Codec[Mail] = Reversed()  # type: ignore[assignment]
    Queue("q", codec=JSONCodec)  # type: ignore[call-overload]
    print(one, two, three, four)


def what_comes_out(job: Job[Mail], lease: Lease[Mail], other: Lease[Order]) -> None:
    number: int = job.payload.to  # type: ignore[assignment]
    text: bytes = lease.job.payload  # type: ignore[assignment]
    print(job.payload.from_)  # type: ignore[attr-defined]
    mails.complete(other)  # type: ignore[arg-type]
    print(number, text)


def codecs(store: DirectoryStore, keys: dict[str, str], anything: Any) -> None:
    JSONCodec(Mail).encode(b"x")  # type: ignore[arg-type]
    MsgpackCodec(Mail).encode(b"x")  # type: ignore[arg-type]
    PydanticCodec(Mail).encode(b"x")  # type: ignore[arg-type]
    Compressed(JSONCodec(Mail)).encode(b"x")  # type: ignore[arg-type]
    Compressed(JSONCodec(Mail), levels=3)  # type: ignore[call-overload]
    Encrypted(JSONCodec(Mail))  # type: ignore[call-overload]
    Encrypted(JSONCodec(Mail), keys)  # type: ignore[arg-type]
    Offloaded(JSONCodec(Mail), anything).encode(b"x")  # type: ignore[arg-type]
    Offloaded(JSONCodec(Mail), "directory")  # type: ignore[call-overload]
    Offloaded(JSONCodec(Mail), store, over="1 MB")  # type: ignore[call-overload]
