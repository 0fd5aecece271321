import json
import sqlite3
from collections.abc import Sequence

from headrace import BatchError, DeadLetter, Job, Queue, Worker

rows = Queue("rows")  # its server is named by the environment: HEADRACE_URL
worker = Worker()


@worker.on_start
def connect() -> None:
    worker.state.database = sqlite3.connect("rows.db", timeout=60, check_same_thread=False)
    worker.state.database.execute("PRAGMA journal_mode=WAL")


@worker.on_stop
def disconnect() -> None:
    worker.state.database.close()


@worker.batch_handler(rows, max_size=500)
def load(jobs: Sequence[Job]) -> None:
    broken = dict[str, Exception]()
    found = list[tuple[str, int]]()
    for job in jobs:
        try:
            found.append((job.id, json.loads(job.payload)["amount"]))
        except (ValueError, KeyError) as error:
            broken[job.id] = DeadLetter(f"no amount: {error!r}")
    with worker.state.database as database:  # one transaction: all of the batch, or nothing
        database.executemany("INSERT OR IGNORE INTO amounts (job, amount) VALUES (?, ?)", found)
    if broken:
        raise BatchError(broken)
