import os
import time

from headrace import DeadLetter, Job, Queue, Retry, Worker

trips = Queue("trips")  # its server is named by the environment: HEADRACE_URL
bookings = Queue("trips/book")
worker = Worker(heartbeat=0.5, timeout=2)
retry = Retry(attempts=1)  # a worker that is killed spends none
ledger = os.open("ledger.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(act: str, trip: str, number: str = "") -> str:
    """Write a line of the ledger, as a service that is called would."""
    number = number or os.urandom(4).hex()
    os.write(ledger, f"{act} {trip} {number}\n".encode())
    time.sleep(0.02)
    return number


def release(number: str) -> None:
    note("release", "-", number)


def refund(number: str) -> None:
    note("refund", "-", number)


@worker.handler(trips, concurrency=8, retry=retry)
def plan(job: Job) -> bytes:
    job.step("hold", note, "hold", job.id, undo=release)
    job.step("charge", note, "charge", job.id, undo=refund)
    parts = [(bookings.name, f"{part} {job.id}".encode()) for part in ("flight", "hotel", "car")]
    return b" ".join(job.run_all(parts, failed="wait"))


@worker.handler(bookings, concurrency=8, retry=retry)
def book(job: Job) -> bytes:
    part, trip = job.payload.decode().split()
    job.sleep("queue", 0.2)
    if part == "car" and int(trip.rpartition("-")[2]) % 3 == 0:
        raise DeadLetter("no car")
    return job.step("book", note, part, trip).encode()


if __name__ == "__main__":
    worker.run()
