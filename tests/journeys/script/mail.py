from pathlib import Path

from headrace import Job, Queue, Retry, Worker
from tenacity import wait_fixed

emails = Queue("emails", url="embedded:./data")
worker = Worker(url="embedded:./data")


@worker.handler(emails, retry=Retry(attempts=2, wait=wait_fixed(0.1)))
def send(job: Job) -> bytes:
    Path("outbox", job.payload.decode()).touch()
    return b"250 OK"


if __name__ == "__main__":
    worker.run()
