"""Errors of missing names. Each says where the name is, or gives its name in headrace."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

ADDS = dict.fromkeys(
    (
        "add",
        "add_job",
        "apply_async",
        "call",
        "create_job",
        "defer",
        "delay",
        "enqueue_call",
        "enqueue_job",
        "enqueue_task",
        "insert",
        "kiq",
        "produce",
        "publish",
        "push",
        "put",
        "schedule_job",
        "send",
        "send_message",
        "send_with_options",
        "submit",
    ),
    "enqueue(…)",
)
OF_QUEUES = {
    **ADDS,
    **dict.fromkeys(("enqueue_at", "enqueue_in"), "enqueue(payload, delay=…)"),
    **dict.fromkeys(("dequeue", "fetch", "get", "pop", "receive", "reserve", "take"), "lease()"),
    **dict.fromkeys(
        ("ack", "nack", "reject"), "lease.complete(), lease.retry() or lease.dead_letter(reason)"
    ),
    **dict.fromkeys(("count", "length", "qsize", "size"), "counts()"),
    **dict.fromkeys(("fetch_job", "get_job", "job", "status"), "find(id)"),
    **dict.fromkeys(("abort", "remove", "revoke"), "cancel(id)"),
    **dict.fromkeys(("clear", "empty", "obliterate"), "admin.purge()"),
    "join": "admin.drain()",
    "unpause": "admin.resume()",
}
OF_TASKS = {
    **ADDS,
    "apply": "a plain call",
    **dict.fromkeys(("s", "si", "signature"), "new(…), for enqueue_many and then="),
    **dict.fromkeys(("configure", "set", "using"), "options(…)"),
    **dict.fromkeys(("AsyncResult", "get_result"), "receipt(id)"),
}
OF_DECLARATIONS = {
    "actor": "@tasks.task",
    "job_function": "@tasks.task",
    "periodic_task": "@tasks.cron(…)",
}
OF_WORKERS = {
    **dict.fromkeys(
        ("actor", "consume", "listen", "process", "register", "subscribe"), "handler(queue)"
    ),
    "task": "tasks(…), with Tasks, whose functions @tasks.task declares",
    **dict.fromkeys(("main", "run_forever", "work"), "run()"),
    **dict.fromkeys(("close", "shutdown", "terminate"), "stop()"),
}
OF_LEASES = {
    **dict.fromkeys(("ack", "done", "finish"), "complete(result)"),
    **dict.fromkeys(("fail", "nack", "requeue"), "retry(delay, reason)"),
    **dict.fromkeys(("bury", "discard", "reject"), "dead_letter(reason)"),
    **dict.fromkeys(("extend", "heartbeat", "touch"), "renew(duration)"),
    "abandon": "release()",
}


class Guided:
    """The base of objects whose errors of missing names name the way out."""

    __slots__ = ()
    _elsewhere: ClassVar[Mapping[str, str]] = {}
    """The names that other libraries have, with the text to write here."""

    def _beside(self) -> Mapping[str, Any]:
        return {}

    def _way_out(self, name: str) -> str:
        if name in self._elsewhere:
            return f": here it is {self._elsewhere[name]}"
        others = {where: dir(other.__class__) for where, other in self._beside().items()}
        for where, names in others.items():
            if name in names:
                return f": it is {where}.{name}"
        all_names = {own: own for own in dir(type(self))}
        all_names |= {
            own: f"{where}.{own}"
            for where, names in others.items()
            for own in names
            if own not in all_names
        }
        close = get_close_matches(name, [own for own in all_names if not own.startswith("_")], 1)
        return f": did you mean {all_names[close[0]]}?" if close else ""

    if not TYPE_CHECKING:  # for type checkers, a missing name is missing

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or hasattr(type(self), name):
                # raises its own error, which a property may have met
                object.__getattribute__(self, name)
            text = f"{type(self).__name__!r} object has no attribute {name!r}{self._way_out(name)}"
            raise AttributeError(text, name=name, obj=self)


class OfThreads:
    """The base of context managers for `with`."""

    if not TYPE_CHECKING:

        def __aenter__(self) -> NoReturn:
            kind = type(self).__name__
            raise TypeError(
                f"a {kind} is for threads: use `with`, or in a coroutine `async with` an Async{kind}"
            )

        async def __aexit__(self, *_: object) -> None: ...


class OfLoops:
    """The base of context managers for `async with`."""

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            kind = type(self).__name__
            raise TypeError(
                f"an {kind} is for asyncio: use `async with`, or `with` a {kind.removeprefix('Async')}"
            )

        def __exit__(self, *_: object) -> None: ...
