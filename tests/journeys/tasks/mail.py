import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

from headrace import Job, Retry, Tasks, Worker
from tenacity import wait_fixed


@dataclass
class Person:
    name: str
    address: str
    born: date


tasks = Tasks("mail")  # its server is named by the environment: HEADRACE_URL
worker = Worker()
worker.tasks(tasks, concurrency=1)  # a connection of SQLite is not for several threads at once


@worker.on_start
def connect() -> None:
    worker.state.sent = sqlite3.connect("sent.db", timeout=60, check_same_thread=False)


@worker.on_stop
def disconnect() -> None:
    worker.state.sent.close()


@worker.middleware
def noted(job: Job, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        print("tracker:", job.headers["kind"], repr(error), flush=True)
        raise


@tasks.task
def welcome(to: Person, *, subject: str = "Welcome") -> int:
    with worker.state.sent as sent:
        sent.execute(
            "INSERT OR IGNORE INTO sent VALUES (?, ?)", (tasks.job.id, f"{subject}, {to.name}")
        )
    return date(2030, 1, 1).year - to.born.year


@tasks.task(retry=Retry(attempts=2, wait=wait_fixed(0.1)))
def remind(to: str) -> None:
    raise ConnectionError(f"no way to {to}")


@tasks.cron(every=1)
@tasks.task
def tidy() -> None:
    with worker.state.sent as sent:
        sent.execute("INSERT INTO sent VALUES (?, 'tidied')", (tasks.job.id,))
