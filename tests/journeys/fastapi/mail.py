import asyncio

from headrace import AsyncQueue, AsyncWorker, Job

emails = AsyncQueue("emails")  # its server is named by the environment: HEADRACE_URL
worker = AsyncWorker()


@worker.handler(emails, concurrency=2)
async def send(job: Job) -> bytes:
    if b"@" not in job.payload:
        raise ValueError(f"not an address: {job.payload!r}")
    await asyncio.sleep(1 if job.payload.startswith(b"slow") else 0)  # your mail server
    return b"250 OK"
