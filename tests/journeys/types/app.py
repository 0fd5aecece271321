from dataclasses import dataclass
from datetime import timedelta

from headrace import AsyncQueue, AsyncWorker, Job, JobFailed, NewJob, Queue, Retry, Tasks
from headrace.codecs import JSONCodec


@dataclass
class Mail:
    to: str
    subject: str = "Welcome"


mails = Queue("mails", url="embedded:./data", codec=JSONCodec(Mail))
others = AsyncQueue("others")
worker = AsyncWorker()


@worker.handler(
    "mails", codec=JSONCodec(Mail), retry=Retry(attempts=5), deadline=timedelta(seconds=30)
)
async def send(job: Job[Mail]) -> str:
    return f"{job.payload.subject} to {job.payload.to}"


def enqueue() -> int:
    mails.enqueue(Mail("ada@example.org"), delay=timedelta(minutes=5))
    receipts = mails.enqueue_many(
        [Mail("ben@example.org"), NewJob(Mail("cy@example.org"), id="cy")]
    )
    lease = mails.lease(block=5.0)
    if lease is not None:
        print(lease.job.payload.to.upper(), lease.complete(result={"sent": True}))
    return sum(receipt.added for receipt in receipts)


async def follow(job: str) -> str:
    receipt = await others.enqueue(b"bytes", headers={"tenant": "x"})
    try:
        await receipt.result(timeout=5)
    except JobFailed as error:
        return error.reason or error.state
    found = await others.find(job)
    return found.state if found else "gone"


tasks = Tasks("greetings")


@tasks.task(deadline=30)
def greet(to: str, *, times: int = 1) -> list[str]:
    return [f"hello, {to}"] * times


def greeted() -> int:
    hello = greet.options(delay=60, id="hello-ada").enqueue("ada", times=2).result(timeout=5)
    return len(greet("ben")) + (len(hello) if hello else 0)
