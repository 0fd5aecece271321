"""The whole public API as its users write it, under `mypy --strict` and pyright. The file is never
run.

What must *not* pass is in `misuse.py`.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import redis
import redis.asyncio
from tenacity import retry_if_exception_type, stop_after_delay, wait_exponential_jitter

import headrace
from headrace import (
    AsyncFlow,
    AsyncLease,
    AsyncQueue,
    AsyncReceipt,
    AsyncWorker,
    BatchError,
    Complete,
    ConfigurationError,
    Counts,
    DeadLetter,
    FanOut,
    Flow,
    FlowJob,
    FlowState,
    HeadraceError,
    Job,
    JobState,
    Lease,
    Limit,
    NewJob,
    Next,
    Queue,
    Receipt,
    Release,
    Retry,
    RetryLater,
    Schedule,
    Worker,
)
from headrace.codecs import Codec, JSONCodec
from headrace.errors import CodecError, PrioritiesMismatch, ReplyError, TooManySchedules, Verdict
from headrace.inspect import Repairs, Share, WorkerState

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)
assert_type(headrace.__version__, str)


class Reversed:
    """A codec of the user's own."""

    def encode(self, payload: Any) -> bytes:
        return bytes(reversed(payload))

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


codec: Codec = Reversed()
json_codec: Codec = JSONCodec(dict[str, int])

# -- queues ----------------------------------------------------------------------------------------


def queues_are_made(client: redis.Redis) -> None:
    Queue("emails")
    Queue("emails", url="redis://localhost:6379/0", namespace="mine", priorities=1, fenced=True)
    Queue("emails", client=client, codec=codec, dead_limit=0)
    Queue("emails", lease=timedelta(minutes=1), max_attempts=None, result_ttl=timedelta(days=1))
    with Queue("emails", lease=30, max_attempts=5, result_ttl=60.0, codec=json_codec) as queue:
        assert_type(queue, Queue[Any])  # a bare `Codec` is any
        assert_type(queue.name, str)


def queues_have_terms(queue: Queue, job: Job) -> None:
    Queue("q", fair="tenant", weights={"gold": 3.0, "iron": 1}, limits=Limit(5))
    weights = {"acme": 2.0, ("acme", "ada"): 0.5}
    Queue(
        "q",
        fair="org/user",
        weights=weights,
        limits=[Limit(5, key="org"), Limit(50, per_shard=True)],
    )
    Queue("q", limits=Limit(20, key="tenant", each={"free": 2}))
    queue.enqueue(b"x", cost=4.0)
    queue.enqueue(NewJob(b"x", cost=2))
    assert_type(job.cost, float | None)
    assert_type(queue.admin.shares(), list[Share])
    queue.admin.redeclare(fair="tenant", weights={"gold": 2})


def producing(queue: Queue) -> None:
    receipt = queue.enqueue(b"x")
    assert_type(receipt, Receipt)
    assert_type(receipt.id, str)
    assert_type(receipt.added, bool)
    queue.enqueue("x", id="a", delay=5, priority=0, headers={"a": "b"})
    queue.enqueue(bytearray(b"x"), delay=timedelta(hours=1))
    queue.enqueue(NewJob(b"x", delay=MOMENT))
    assert_type(queue.enqueue_many([b"a", "b", NewJob(b"c", id="c-1")]), list[Receipt])
    queue.enqueue_many(str(i) for i in range(3))


def leasing(queue: Queue) -> None:
    lease = queue.lease()
    assert_type(lease, Lease | None)
    queue.lease(5.0)
    queue.lease(block=None)
    queue.lease(block=timedelta(seconds=1), duration=timedelta(minutes=1), at_most_once=True)
    assert_type(queue.lease_many(100, block=5, duration=10.0), list[Lease])
    assert lease is not None
    assert_type(lease.token, int)
    assert_type(lease.worker, str)
    job = lease.job
    assert_type(job, Job)
    assert_type(job.id, str)
    assert_type(job.headers, Mapping[str, str])
    assert_type(job.attempt, int)
    assert_type(job.enqueued_at, float)
    assert_type(bool(job.lost), bool)
    assert_type(job.queue, str)


def settling(queue: Queue, lease: Lease, leases: Sequence[Lease]) -> None:
    assert_type(queue.complete(lease), bool)
    queue.complete(lease, b"result", [NewJob(b"x", queue="emails/next")], fenced=True)
    assert_type(queue.complete_many(leases, fenced=False), list[bool])
    assert_type(queue.release(lease), bool)
    assert_type(queue.retry(lease, 5.0, "why"), bool)
    assert_type(queue.dead_letter(lease, "why"), bool)
    assert_type(queue.renew(lease, timedelta(minutes=1)), bool)
    assert_type(lease.complete(result="x", then=(NewJob(b"x"),), fenced=None), bool)
    assert_type(lease.release(), bool)
    assert_type(lease.retry(delay=MOMENT, reason="why"), bool)
    assert_type(lease.dead_letter("why"), bool)
    assert_type(lease.renew(5), bool)


def looking(queue: Queue) -> None:
    counts = queue.counts()
    assert_type(counts, Counts)
    assert_type(
        counts.waiting
        + counts.parked
        + counts.leased
        + counts.delayed
        + counts.blocked
        + counts.dead,
        int,
    )
    assert_type(
        counts.enqueued
        + counts.completed
        + counts.cancelled
        + counts.deleted
        + counts.dead_trimmed,
        int,
    )
    assert_type(counts.present + counts.lost, int)
    assert_type(queue.admin.peek(), Job | None)
    for states in (
        queue.admin.waiting(),
        queue.admin.running(),
        queue.admin.delayed(),
        queue.admin.dead(),
    ):
        assert_type(states, Iterator[JobState])
    state = queue.find("a")
    assert_type(state, JobState | None)
    assert state is not None
    assert_type(state.enqueued_at, float | None)
    assert_type(state.job, Job)
    assert_type(state.state, str)
    assert_type(state.worker, str | None)
    assert_type(state.reason, str | None)
    assert_type(state.since, float | None)
    assert_type(state.due, float | None)
    assert_type(queue.result("a"), bytes | None)
    queue.result("a", timeout=5)
    assert_type(queue.admin.workers(), list[WorkerState])


def managing(queue: Queue) -> None:
    assert_type(queue.cancel("a"), bool)
    assert_type(queue.admin.reschedule("a", timedelta(hours=1)), bool)
    assert_type(queue.admin.schedule("s", b"x", every=timedelta(hours=1), missed="all"), bool)
    assert_type(
        queue.admin.schedule(
            "s", "x", cron="0 9 * * *", timezone="Europe/Berlin", headers={"a": "b"}
        ),
        bool,
    )
    assert_type(queue.admin.unschedule("s"), bool)
    assert_type(queue.admin.schedules(), list[Schedule])
    assert_type(queue.admin.cancel_payload(b"x"), int)
    assert_type(queue.admin.redrive(), int)
    queue.admin.redrive("a", "b")
    assert_type(queue.admin.purge_dead("a"), int)
    assert_type(queue.admin.purge(), int)
    assert_type(queue.admin.purge(value=("acme", None)), int)
    assert_type(queue.admin.pause(value="acme"), bool)
    assert_type(queue.admin.paused_values(), list[tuple[str | None, ...]])
    assert_type(queue.admin.delete(), int)
    mended = queue.admin.repair()
    assert_type(mended, Repairs)
    assert_type(mended.total + mended.stranded, int)
    queue.close()


def in_a_transaction(queue: Queue) -> None:
    op = queue.ops.enqueue([queue.ops.item(b"x")])
    assert_type(op.wire(), tuple[str | bytes | int, ...])
    assert_type(op.decode([b"1-0"]), list[Receipt])
    assert_type(queue.ops.counts().decode([0] * 11), Counts)


def on_a_server(client: redis.Redis) -> None:
    assert_type(headrace.queues(client), list[str])
    for state in headrace.workers(client, namespace="mine"):
        assert_type(state, WorkerState)
        assert_type(state.name + state.queue, str)
        assert_type(state.since + state.deadline, float)
        assert_type(state.leased, int)
        assert_type(state.alive, bool)


# -- the asynchronous twin -------------------------------------------------------------------------


async def asynchronously(client: redis.asyncio.Redis) -> None:
    async with AsyncQueue("emails", client=client, lease=timedelta(minutes=1)) as queue:
        assert_type(queue, AsyncQueue)
        assert_type(await queue.enqueue(b"x", id="a", delay=MOMENT, headers={}), AsyncReceipt)
        assert_type(await queue.enqueue_many([b"a"]), list[AsyncReceipt])
        lease = await queue.lease(block=5)
        assert_type(lease, AsyncLease | None)
        leases = await queue.lease_many(10, at_most_once=True)
        assert_type(leases, list[AsyncLease])
        assert lease is not None
        assert_type(lease.job, Job)
        assert_type(await queue.complete(lease, b"x", [NewJob(b"x")], fenced=True), bool)
        assert_type(await queue.complete_many(leases), list[bool])
        assert_type(await queue.release(lease), bool)
        assert_type(await queue.retry(lease, 5, "why"), bool)
        assert_type(await queue.dead_letter(lease, "why"), bool)
        assert_type(await queue.renew(lease, 5), bool)
        assert_type(await lease.complete(result=b"x"), bool)
        assert_type(await lease.release(), bool)
        assert_type(await lease.retry(5), bool)
        assert_type(await lease.dead_letter("why"), bool)
        assert_type(await lease.renew(), bool)
        assert_type(await queue.counts(), Counts)
        assert_type(await queue.admin.peek(), Job | None)
        for states in (
            queue.admin.waiting(),
            queue.admin.running(),
            queue.admin.delayed(),
            queue.admin.dead(),
        ):
            assert_type(states, AsyncIterator[JobState])
        assert_type([state.job.id async for state in queue.admin.waiting()], list[str])
        assert_type(await queue.find("a"), JobState | None)
        assert_type(await queue.result("a", timeout=5.0), bytes | None)
        assert_type(await queue.admin.workers(), list[WorkerState])
        assert_type(await queue.cancel("a"), bool)
        assert_type(await queue.admin.reschedule("a", timedelta(hours=1)), bool)
        assert_type(
            await queue.admin.schedule("s", b"x", every=timedelta(hours=1), missed="all"), bool
        )
        assert_type(
            await queue.admin.schedule(
                "s", "x", cron="0 9 * * *", timezone="Europe/Berlin", headers={"a": "b"}
            ),
            bool,
        )
        assert_type(await queue.admin.unschedule("s"), bool)
        assert_type(await queue.admin.schedules(), list[Schedule])
        assert_type(await queue.admin.cancel_payload("x"), int)
        assert_type(await queue.admin.redrive("a"), int)
        assert_type(await queue.admin.purge_dead(), int)
        assert_type(await queue.admin.purge(), int)
        assert_type(await queue.admin.delete(), int)
        assert_type(await queue.admin.repair(), Repairs)
    assert_type(await asyncio.gather(queue.counts(), queue.admin.purge()), tuple[Counts, int])
    await queue.close()


# -- workers ---------------------------------------------------------------------------------------

worker = Worker(
    url="redis://localhost:6379/0", name="w", heartbeat=2.0, timeout=timedelta(seconds=10)
)
async_worker = AsyncWorker(url="embedded:./data", namespace="mine", trace_parent="message")
RETRY = Retry(
    attempts=5,
    wait=wait_exponential_jitter(1, 60),
    stop=stop_after_delay(3600),
    retry=retry_if_exception_type(OSError),
)


@worker.handler(
    "emails", concurrency=10, retry=RETRY, deadline=30, lease=timedelta(minutes=1), codec=json_codec
)
def send(job: Job) -> bytes | None:
    if job.lost:
        raise Release
    if job.attempt > 1:
        raise (
            RetryLater(5, "later", spend=True) if job.payload else RetryLater(timedelta(minutes=1))
        )
    if job.attempt > 5:
        raise RetryLater(MOMENT)
    raise DeadLetter("no")


@worker.batch_handler("events", max_size=1000, max_wait=0.05, concurrency=2, retry=Retry(wait=3))
def ingest(jobs: Sequence[Job]) -> None:
    raise BatchError({job.id: ValueError("bad") for job in jobs})


@async_worker.handler(
    "emails", deadline=timedelta(minutes=1), max_attempts=3, result_ttl=60, fenced=True
)
async def send_async(job: Job) -> bytes:
    payload: bytes = job.payload  # whatever the codec makes of it
    return b"sent " + payload


POLICY = Retry(
    on={
        ValueError: DeadLetter,
        TimeoutError: RetryLater(5),
        KeyError: Release,
        FileExistsError: Complete(b"r"),
        OSError: lambda error: RetryLater(error.errno),
    }
)


@worker.handler("kinds", kind="a", grace=timedelta(minutes=5), retry=POLICY)
def of_a_kind(job: Job) -> bytes | Verdict:
    return RetryLater(5) if job.attempt == 1 else Complete(b"r") if job.attempt == 2 else b"x"


@worker.batch_handler("verdicts")
def with_verdicts(jobs: Sequence[Job]) -> dict[str, Verdict]:
    return {job.id: DeadLetter("no") for job in jobs}


@async_worker.handler("connections", persistent=True)
async def hold(job: Job) -> Verdict | None:
    return Complete() if job.lost else None


@async_worker.handler("plain")
def refund(charge: str) -> None: ...


def pay(cents: int) -> str:
    return f"{cents}"


async def pay_async(cents: int) -> str:
    return f"{cents}"


async def refund_async(charge: str) -> None: ...


def steps_are_undone(job: Job) -> None:
    assert_type(job.step("charge", pay, 5), str)
    assert_type(job.step("charge", pay, 5, undo=refund), str)
    assert_type(job.step("charge", pay, 5, undo=refund, once=True), str)
    job.undo()


async def async_steps_are_undone(job: Job) -> None:
    assert_type(await job.step("charge", pay_async, 5, undo=refund_async), str)
    assert_type(await job.step("charge", pay_async, 5, undo=refund, once=True), str)
    await job.undo()


def plain(job: Job) -> None:
    """Run in a thread."""


@async_worker.batch_handler("events", max_wait=timedelta(seconds=1), dead_limit=5)
async def ingest_async(jobs: Sequence[Job]) -> None: ...


def a_handler_keeps_its_type(job: Job) -> None:
    assert_type(send(job), bytes | None)
    ingest([job])


async def an_async_handler_keeps_its_type(job: Job) -> None:
    assert_type(await send_async(job), bytes)
    plain(job)
    await ingest_async((job,))


def working(client: redis.Redis) -> None:
    worker.run()
    with Worker(client=client) as inner:
        assert_type(inner, Worker)
    worker.stop(wait=False)


async def working_asynchronously(client: redis.asyncio.Redis) -> None:
    await async_worker.serve()
    async with AsyncWorker(client=client) as inner:
        assert_type(inner, AsyncWorker)
    await async_worker.stop()


async_worker.run()


# -- flows -----------------------------------------------------------------------------------------

flow = Flow("orders", url="redis://localhost:6379/0", lookup=["customer"])
aflow = AsyncFlow("orders", client=redis.asyncio.Redis(), result_ttl=timedelta(hours=1))


@flow.stage(
    "pick", next=["bill", "pack"], children="pack", retry=Retry(5), deadline=30, concurrency=3
)
def pick(job: FlowJob) -> Next | FanOut | bytes:
    if job.attributes.get("customer") == "ada":
        return Next("pack", b"result")
    return FanOut([job.payload, NewJob(b"x", id="x")], stage="pack", join="bill", failed="continue")


@aflow.stage("pick", lease=timedelta(minutes=1), max_attempts=3)
async def pick_async(job: FlowJob) -> bytes | None:
    result: bytes | None = job.children["x"] or job.results["pick"]
    return result


def flowing(lease: Lease) -> None:
    worker.flow(flow)
    worker.flow(flow, "pick")
    assert_type(flow.start(b"x", attributes={"customer": "ada", "tags": ["a", "b"]}), Receipt)
    assert_type(flow.complete(lease, Next(None)), bool)
    assert_type(flow.state("o-1"), FlowState | None)
    assert_type(flow.find(customer="ada"), list[FlowState])
    assert_type(flow.result("o-1", timeout=5), Any)
    assert_type(flow.cancel("o-1"), bool)
    assert_type(flow.counts(), dict[str, Counts])
    assert_type(flow.mermaid(counts=True), str)


async def flowing_asynchronously(lease: AsyncLease) -> None:
    async_worker.flow(aflow)
    async with aflow as inner:
        assert_type(inner, AsyncFlow)
        assert_type(await aflow.start(b"x"), Receipt)
        assert_type(await aflow.complete(lease), bool)


# -- errors ----------------------------------------------------------------------------------------


def failing(queue: Queue) -> None:
    try:
        queue.lease()
    except (ConfigurationError, CodecError) as error:
        wrong: ValueError = error
        raise wrong from None
    except (ReplyError, PrioritiesMismatch, TooManySchedules) as error:
        ours: HeadraceError = error
        raise ours from None
    except Verdict as verdict:
        plain: Exception = verdict
        raise plain from None
    except BatchError as error:
        assert_type(error.failures, dict[str, BaseException])
