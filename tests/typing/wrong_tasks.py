"""Wrong calls of tasks that a type checker must refuse. A missed one is an unused ignore. The file
is never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from tasks import async_tasks, bare, later, tasks, welcome

from headrace import Tasks, Worker
from headrace.codecs import JSONCodec


def wrong_arguments() -> None:
    welcome.enqueue()  # type: ignore[call-arg]
    welcome.enqueue(5)  # type: ignore[arg-type]
    welcome.enqueue("ada", 5)  # type: ignore[call-arg, arg-type]
    welcome.enqueue("ada", at="tomorrow")  # type: ignore[arg-type]
    welcome.enqueue("ada", on=None)  # type: ignore[call-arg]
    welcome.enqueue("ada", delay=60)  # type: ignore[call-arg]
    welcome.new(5)  # type: ignore[arg-type]
    welcome.options(delay=60).enqueue(5)  # type: ignore[arg-type]
    welcome.options(dealy=60)  # type: ignore[call-arg]
    welcome.options(id=5)  # type: ignore[arg-type]
    bare.enqueue(1, "2")  # type: ignore[arg-type]
    number: str = welcome("ada")  # type: ignore[assignment]
    print(number)


async def asynchronously() -> None:
    await later.enqueue("ada", copies="two")  # type: ignore[arg-type]
    await later.enqueue()  # type: ignore[call-arg]
    number: int = await later("ada")  # type: ignore[assignment]
    print(number)


def declarations(worker: Worker) -> None:
    tasks.task("welcome")  # type: ignore[call-overload]
    tasks.task(retries=5)  # type: ignore[call-overload]
    async_tasks.task(retry=5)  # type: ignore[call-overload]
    tasks.cron(5)  # type: ignore[arg-type]
    tasks.cron(evrey=5)  # type: ignore[call-arg]
    tasks.enqueue_many([welcome])  # type: ignore[list-item]
    worker.tasks("mail")  # type: ignore[arg-type]
    Tasks("mail", max_attempt=5)  # type: ignore[call-arg]
    numbers = JSONCodec(int)
    Tasks("mail", codec=numbers)  # type: ignore[arg-type]
