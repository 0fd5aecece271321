"""Tasks of the project."""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from django.db.backends.signals import connection_created

from headrace import DeadLetter
from headrace.django import _contract as contract

task: Any = __import__(contract.FIRST.package, fromlist=["task"]).task
ran: list[Any] = []  # what `note` was called with, in this process


@task()
def nothing(*args: Any, **kwargs: Any) -> None:
    return None


@task
async def nothing_async(*args: Any, **kwargs: Any) -> None:
    return None


@task
def answer() -> int:
    return 42


@task
def note(value: Any) -> Any:
    ran.append(value)
    return value


@task
def raises(name: str = "ValueError", text: str = "on purpose") -> None:
    raise {
        "ValueError": ValueError,
        "SystemExit": SystemExit,
        "KeyboardInterrupt": KeyboardInterrupt,
    }[name](text)


@task
def raises_nested() -> None:
    raise ValueError(ValueError("on purpose"))


@task
def returns_no_json() -> Any:
    return object()


@task(takes_context=True)
def own_id(context: Any) -> str:
    return str(context.task_result.id)


@task(takes_context=True)
def seen(context: Any, *, fails: int = 0) -> dict[str, Any]:
    """Return the view that a task has of itself, after so many failures."""
    result = context.task_result
    if context.attempt <= fails:
        raise LookupError(f"attempt {context.attempt}")
    return {
        "attempt": context.attempt,
        "context": isinstance(context, contract.FIRST.TaskContext),
        "status": str(result.status),
        "errors": [one.exception_class_path for one in result.errors],
        "workers": len(result.worker_ids),
        "began": result.started_at is not None and result.last_attempted_at >= result.started_at,
    }


@task
def gives_up() -> None:
    raise DeadLetter("of no use")


@task
def kills(path: str) -> str:
    """Kill its process at first."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@task
def takes(seconds: float) -> None:
    time.sleep(seconds)


@task
def queries(number: int) -> int:
    from django.contrib.auth.models import Group

    Group.objects.create(name=f"group {number}")
    return Group.objects.count()


@task
def surrogate() -> str:
    """Return text that is no Unicode."""
    return "\ud800"


@task
def bills(customer: str, amount: int = 1) -> str:
    return f"{customer}: {amount}"


@task(takes_context=True)
def steps(context: Any, order: int) -> dict[str, Any]:
    """Run as steps, of which recorded ones do not run again."""
    job = context.job
    paid = job.step("pay", ran.append, f"paid {order}")
    job.progress(0.5, "paid")
    who = job.wait_for("approved")
    return {
        "paid": paid,
        "who": who,
        "attempt": context.attempt,
        "id": job.id == context.task_result.id,
    }


@task(takes_context=True)
def endless(context: Any) -> str:
    """Run until somebody cancels it."""
    while not context.job.lost:
        time.sleep(0.01)
    ran.append("lost")
    return "lost"


@task(retry={"attempts": 3, "wait": 0})
def persists() -> None:
    raise LookupError("as ever")


@task(takes_context=True, deadline=0.2)
def dawdles(context: Any) -> None:
    while not context.job.lost:
        time.sleep(0.01)


@task
def tick() -> None:
    ran.append("tick")


@task
def says(text: str) -> None:
    logging.getLogger("django.shop").warning(text)


connected: list[int] = []  # the processes in which this module has seen a connection begin


def _note_connection(**_: Any) -> None:
    connected.append(os.getpid())


connection_created.connect(_note_connection)


@task
def whereabouts() -> dict[str, Any]:
    """Query, and tell where this runs, and where connections were made."""
    from django.contrib.auth.models import Group

    return {"rows": Group.objects.count(), "pid": os.getpid(), "connected": connected}


@task(takes_context=True)
def misbehaves(context: Any, how: str) -> str:
    """Hang in C, end its process, or be well the second time."""
    if how == "hangs":
        re.match(r"(a+)+$", "a" * 40 + "b")
    if how == "dies" and context.attempt == 1:
        os._exit(3)
    return f"{how} in attempt {context.attempt} of {len(context.task_result.worker_ids)}"
