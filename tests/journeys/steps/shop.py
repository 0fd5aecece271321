import os
import urllib.request

from headrace import DeadLetter, Job, Queue, Retry, Worker
from headrace.errors import InDoubt

orders = Queue("orders", max_attempts=50)  # its server is named by the environment: HEADRACE_URL
worker = Worker(heartbeat=0.5, timeout=2)


def ask(act: str, order: str) -> str:
    url = f"http://127.0.0.1:{os.environ['SERVICES_PORT']}/{act}/{order}"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10) as answer:
        return answer.read().decode()


@worker.handler(orders, concurrency=8, retry=Retry(attempts=50, wait=0.1))
def fulfil(job: Job) -> bytes:
    charge = job.step("charge", ask, "charge", job.id)
    for n in range(3):
        job.step(f"receipt-{n}", ask, "receipt", job.id)
    job.sleep("cooling-off", 0.3)
    answer = job.wait_for("approved", timeout=60)
    try:
        parcel = job.step("ship", ask, "parcel", job.id, once=True)
    except InDoubt:
        parcel = job.step("find", ask, "find", job.id)
        if not parcel:
            raise DeadLetter("no parcel") from None
    return f"{charge} {parcel} {answer}".encode()


if __name__ == "__main__":
    worker.run()
