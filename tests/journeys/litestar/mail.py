from headrace import AsyncQueue, AsyncWorker, DeadLetter, Job

emails = AsyncQueue("emails")
worker = AsyncWorker()


@worker.handler(emails, concurrency=20)
async def send(job: Job) -> bytes:
    if b"@" not in job.payload:
        raise DeadLetter("not an address")
    return b"250 OK"
