from headrace import AsyncWorker, Job, Queue, Receipt
from headrace.codecs import JSONCodec

emails = Queue("emails", codec=JSONCodec(dict[str, str]))  # where it is, the environment says
worker = AsyncWorker()


@worker.handler(emails)
async def send(job: Job[dict[str, str]]) -> str:
    if "@" not in job.payload["to"]:
        raise ValueError(f"not an address: {job.payload['to']}")
    return f"sent to {job.payload['to']}"


def welcome(address: str, delay: float = 0) -> Receipt:
    return emails.enqueue({"to": address}, id=f"welcome-{address}", delay=delay)
