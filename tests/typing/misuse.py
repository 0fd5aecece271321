"""Mistakes that a type checker must catch. A missed one is an unused ignore and fails. The file is
never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import redis
import redis.asyncio

import headrace
from headrace import (
    AsyncLease,
    AsyncQueue,
    AsyncWorker,
    BatchError,
    Counts,
    DeadLetter,
    Job,
    Lease,
    NewJob,
    Queue,
    Receipt,
    Retry,
    RetryLater,
    Worker,
)

# -- making one ------------------------------------------------------------------------------------

Queue()  # type: ignore[call-overload]
Queue("q", 6379)  # type: ignore[call-overload]
Queue("q", urll="redis://localhost")  # type: ignore[call-overload]
Queue("q", lease="60")  # type: ignore[call-overload]
Queue("q", max_attempts=1.5)  # type: ignore[call-overload]
Queue("q", codec=str)  # type: ignore[call-overload]
Queue("q", client=redis.asyncio.Redis())  # type: ignore[call-overload]
AsyncQueue("q", client=redis.Redis())  # type: ignore[call-overload]
headrace.queues(redis.asyncio.Redis())  # type: ignore[arg-type]
headrace.workers("redis://localhost")  # type: ignore[arg-type]


def of_bytes(charge: bytes) -> None: ...


def pay() -> str:
    return ""


def undos(job: Job) -> None:
    job.step("charge", pay, undo=5)  # type: ignore[call-overload]
    job.step("charge", pay, undo=of_bytes)  # type: ignore[arg-type]


def arguments(queue: Queue, lease: Lease, leases: list[Lease]) -> None:
    queue.enqueue(b"x", "id")  # type: ignore[call-overload]
    queue.enqueue(b"x", id=5)  # type: ignore[call-overload]
    queue.enqueue(b"x", delay="5")  # type: ignore[call-overload]
    queue.enqueue(b"x", headers={"a": 1})  # type: ignore[dict-item]
    queue.enqueue(b"x", headers={b"a": b"b"})  # type: ignore[dict-item]
    queue.enqueue(b"x", priority="high")  # type: ignore[call-overload]
    queue.enqueue_many(5)  # type: ignore[call-overload]
    queue.lease(block="5")  # type: ignore[arg-type]
    queue.lease(0.0, 5.0)  # type: ignore[call-arg]
    queue.lease_many()  # type: ignore[call-arg]
    queue.complete(lease.job)  # type: ignore[arg-type]
    queue.complete(lease.job.id)  # type: ignore[arg-type]
    queue.complete(lease, then=NewJob(b"x"))  # type: ignore[arg-type]
    queue.complete(lease, then=[b"x"])  # type: ignore[list-item]
    queue.complete_many(lease)  # type: ignore[arg-type]
    queue.retry(lease, reason=5)  # type: ignore[arg-type]
    queue.dead_letter(lease)  # type: ignore[call-arg]
    queue.release(leases)  # type: ignore[arg-type]
    queue.cancel(lease)  # type: ignore[arg-type]
    queue.admin.redrive(["a"])  # type: ignore[call-overload]
    lease.complete(b"x", fenced="yes")  # type: ignore[arg-type]
    lease.ack()  # type: ignore[attr-defined]


# -- what comes back -------------------------------------------------------------------------------


def answers(queue: Queue, job: Job, receipt: Receipt, counts: Counts) -> None:
    queue.lease().complete()  # type: ignore[union-attr]
    print(queue.find("a").state)  # type: ignore[union-attr]
    print(queue.admin.peek().payload)  # type: ignore[union-attr]
    queue.admin.waiting()[0]  # type: ignore[index]
    len(queue.admin.dead())  # type: ignore[arg-type]
    kept: str = queue.result("a")  # type: ignore[assignment]
    job.headers["a"] = "b"  # type: ignore[index]
    print(kept)
    receipt.added = "yes"  # type: ignore[assignment, misc]
    counts.waiting = 0  # type: ignore[misc]
    print(counts.pending)  # type: ignore[attr-defined]


# -- the two colours -------------------------------------------------------------------------------


async def colours(queue: Queue, twin: AsyncQueue, lease: Lease, atwin: AsyncLease) -> None:
    twin.enqueue(b"x")  # type: ignore[unused-coroutine]
    twin.release(atwin)  # type: ignore[unused-coroutine]
    atwin.complete()  # type: ignore[unused-coroutine]
    won: bool = twin.complete(atwin)  # type: ignore[assignment]
    if twin.complete(atwin):  # type: ignore[truthy-bool]
        won = True
    print(twin.counts().waiting)  # type: ignore[attr-defined]
    await queue.counts()  # type: ignore[misc]
    await lease.complete()  # type: ignore[misc]
    await queue.complete(atwin)  # type: ignore[arg-type, misc]
    await twin.complete(lease)  # type: ignore[arg-type]
    for _ in twin.admin.waiting():  # type: ignore[attr-defined]
        pass
    async for _ in queue.admin.waiting():  # type: ignore[attr-defined]
        pass
    with twin:  # type: ignore[attr-defined]
        pass
    async with queue:  # type: ignore[attr-defined]
        pass
    print(won)


# -- workers ---------------------------------------------------------------------------------------

worker = Worker(url="redis://localhost:6379/0")
Worker(urll="redis://localhost")  # type: ignore[call-arg]
Worker(timeout="10")  # type: ignore[arg-type]
Worker(client=redis.asyncio.Redis())  # type: ignore[arg-type]
AsyncWorker(client=redis.Redis())  # type: ignore[arg-type]
worker.handler()  # type: ignore[call-arg]
worker.handler("q", 10)  # type: ignore[call-arg]
worker.handler("q", concurrency="10")  # type: ignore[arg-type]
worker.handler("q", leases=5)  # type: ignore[call-arg]
worker.handler("q", lease="5")  # type: ignore[arg-type]
worker.handler("q", retry=5)  # type: ignore[arg-type]
worker.handler("q", max_size=5)  # type: ignore[call-arg]
worker.batch_handler("q", max_size=1.5)  # type: ignore[arg-type]
worker.batch_handler("q", result_ttl=5)  # type: ignore[call-arg]
worker.handler("q")(5)  # type: ignore[type-var]
Retry("5")  # type: ignore[arg-type]
Retry(attempt=5)  # type: ignore[call-arg]
Retry(on={ValueError: 5})  # type: ignore[dict-item]
Retry(on=DeadLetter)  # type: ignore[arg-type]
worker.handler("q", kind=5)  # type: ignore[arg-type]
worker.batch_handler("q", kind="a")  # type: ignore[call-arg]
BatchError(["a"])  # type: ignore[arg-type]
RetryLater("5")  # type: ignore[arg-type]
DeadLetter()  # type: ignore[call-arg]
NewJob()  # type: ignore[call-arg]
NewJob(b"x", id=5)  # type: ignore[arg-type]
