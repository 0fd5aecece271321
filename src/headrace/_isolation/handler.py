"""The parent's side of an isolated handler. It is a plain function, which waits for a child."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from attrs import define

from headrace._isolation.carried import Carried, innermost
from headrace._isolation.children import LOOK_S, Children, Process
from headrace._isolation.link import Broken, Head
from headrace._isolation.values import remade, told, unpacked
from headrace._model.codec import as_bytes
from headrace._model.job import Job
from headrace._telemetry.tracing import handed_on
from headrace.errors import Killed


class Unencoded:
    """The result of a handler that the child could not encode. Nothing else can, either."""

    def __init__(self, why: BaseException) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"<a result that a child could not encode: {self.why}>"


@define(eq=False, slots=False)
class Isolated:
    """A handler whose function runs in a child. Call it in a thread, with its job or batch."""

    children: Children
    function: Callable[..., Any]  # of the user, as its name is in logs
    kind: str | None
    codec: Any  # the queue's
    bare: bool  # whether results are bytes that the child's task has made
    batch: bool = False
    deadline: float | None = None  # seconds

    def __attrs_post_init__(self) -> None:
        self.__module__ = self.function.__module__
        self.__qualname__ = self.function.__qualname__

    def __call__(self, argument: Any) -> Any:
        jobs: Sequence[Job[Any]] = argument if self.batch else [argument]
        codec = innermost(self.codec)
        payloads = [as_bytes(codec.encode(job.payload)) for job in jobs]
        child = self.children.take()
        try:
            child.link.send(self._head(jobs), payloads)
        except Broken:
            raise self.children.died(child) from None
        return _Turn(self, child, jobs).result()

    def _head(self, jobs: Sequence[Job[Any]]) -> Head:
        return {
            "is": "job",
            "kind": self.kind,
            "trace": handed_on(),
            "jobs": [
                {
                    "id": job.id,
                    "queue": job.queue,
                    "shard": getattr(job.queue, "shard", None),
                    "headers": dict(job.headers),
                    "attempt": job.attempt,
                    "enqueued_at": job.enqueued_at,
                }
                for job in jobs
            ],
        }


@define(eq=False)
class _Turn:
    handler: Isolated
    child: Process
    jobs: Sequence[Job[Any]]
    steps: Any = None

    def result(self) -> Any:
        """Wait for the end. Raises the error of the handler, or `Killed`."""
        children = self.handler.children
        deadline = self.handler.deadline
        end = float("inf") if deadline is None else time.monotonic() + deadline
        link = self.child.link
        while True:
            left = end - time.monotonic()
            if link.arrived(min(LOOK_S, left)):
                try:
                    head, parts = link.receive()
                    if head["is"] != "done":
                        self._serve(head, parts)
                        continue
                except (Broken, KeyError, TypeError):  # it has ended, or sent no message
                    raise children.died(self.child) from None
                return self._ended(head, parts)
            if left <= 0:
                raise children.kill(self.child, f"deadline of {deadline:g} s", "deadline")
            if all(job.lost for job in self.jobs):
                raise children.kill(self.child, "its job was taken away", "lost")
            if self.child.gone():
                raise children.died(self.child)

    def _ended(self, head: Head, parts: list[bytes]) -> Any:
        children = self.handler.children
        self.child.rss = head.get("rss", 0)
        memory = children.isolation.memory_mb
        if head.get("memory") and memory is not None:
            raise children.died(self.child, f"out of memory: {memory:,.0f} MiB")
        children.give(self.child)
        if (error := head.get("error")) is not None:
            raise remade(error)
        if (why := head.get("unencoded")) is not None:
            return Unencoded(remade(why))
        if self.handler.batch:
            return unpacked(head["result"])
        if not parts:
            return None
        return parts[0] if self.handler.bare else innermost(self.handler.codec).decode(parts[0])

    # -- requests of the child ---------------------------------------------------------------------

    def _serve(self, head: Head, parts: list[bytes]) -> None:
        kind = head["is"]
        if kind == "log":
            _log(head)
        elif kind in {"sleep", "wait_for"}:  # it may last until the steps beside it are recorded
            call = threading.Thread(
                target=self._answer, args=(head, parts), name="headrace-child-wait", daemon=True
            )
            call.start()
        else:
            self._answer(head, parts)

    def _answer(self, head: Head, parts: list[bytes]) -> None:
        try:
            answer, data = self._asked(head, parts)
        except BaseException as error:
            answer, data = {"error": told(error)}, []
        if (number := head.get("number")) is not None:
            self.child.link.send({"is": "answer", "number": number, **answer}, data)

    def _asked(self, head: Head, parts: list[bytes]) -> tuple[Head, list[bytes]]:
        if self.steps is None:
            self.steps = cast("Any", self.jobs[0])._taker()  # noqa: SLF001 - we are its handler
            self.steps.run.values = Carried(self.steps.run.values.codec)
        run = self.steps.run
        drive = self.steps.drive
        value = parts[0] if parts else None
        known = True
        match head["is"]:
            case "progress":
                self.steps.progress(head["fraction"], head["text"])
                value = None
            case "begin":
                known, value = drive(run.begin(head["name"], bytes, once=head["once"]))
            case "end":
                value = drive(run.end(head["name"], bytes, value, head["took"]))
            case "failed":
                run.failed(head["name"])
                value = None
            case "sleep":
                until = unpacked(head["until"])
                drive(run.sleep(head["name"], until, release_key=head["release_key"]))
                value = None
            case "wait_for":
                until = unpacked(head["until"])
                value = drive(run.wait_for(head["name"], until, release_key=head["release_key"]))
            case other:
                raise Killed(f"the child sent {other!r:.100}")
        return {"known": known}, [] if value is None else [value]


def _log(head: Head) -> None:
    """Log a record of the child here, where the logging of the program is set up."""
    logger = logging.getLogger(head["name"])
    if logger.isEnabledFor(head["level"]):
        record = logger.makeRecord(
            head["name"], head["level"], head["path"], head["line"], head["text"], (), None
        )
        record.created = head["created"]
        logger.handle(record)
