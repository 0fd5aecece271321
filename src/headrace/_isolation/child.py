"""The program of a child process. It runs one function on the jobs that its parent sends.

It has no connection to Redis. It ends when its parent does, and with the processes that its
handlers have started.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import itertools
import logging
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from headrace import _forks
from headrace._core.verdicts import PLAIN, meant
from headrace._isolation import stages
from headrace._isolation.link import Broken, Head, Link, Message, out_of_reach
from headrace._isolation.program import MIB, Functions, Loaded, Program, resident
from headrace._isolation.steps import steps
from headrace._isolation.values import packed, remade, told
from headrace._model.codec import BytesCodec, as_bytes, untyped
from headrace._model.flow import FanOut, FlowJob, Next
from headrace._model.job import Job, ShardedName, make_job, run_of
from headrace._telemetry.tracing import continued
from headrace.errors import RunLost

DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG of Linux
_libc = ctypes.CDLL(None)
JOBS = 0  # the number of messages that answer nothing
NOWHERE = nullcontext()  # that a span goes on


def run(end: socket.socket, load: Callable[[], Loaded]) -> None:
    """Run the child until its parent has gone, or tells it to stop."""
    if sys.platform == "linux":
        _libc.prctl(DEATH_OF_PARENT, signal.SIGKILL)
    link = Link(out_of_reach(end))
    try:
        program, functions = load()
        if program.memory_mb is not None:
            limit = int(program.memory_mb * MIB)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except BaseException as error:
        link.send({"is": "refused", "error": told(error)})
        return
    child = Child(link, program, functions)
    if not logging.root.handlers:  # else the handler's module has set up logging itself
        logging.root.addHandler(_Forwarding(link))
    child.run()


class Mailbox:
    """The messages of the parent, for the threads that wait for them.

    One of these threads receives for all. So no other thread stands between link and handler.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._moved = _forks.condition()
        self._received: dict[int, Message] = {}
        self._wanted: set[int] = set()
        self._receiving = False

    def expect(self, number: int) -> None:
        with self._moved:
            self._wanted.add(number)

    def take(self, number: int) -> Message:
        """Wait for the message of this number. Raises `Broken`."""
        with self._moved:
            while number not in self._received:
                if self._receiving:
                    self._moved.wait()
                    continue
                self._receiving = True
                self._moved.release()
                try:
                    message = self._link.receive()
                finally:
                    self._moved.acquire()
                    self._receiving = False
                    if self._wanted:  # else nobody asks, and this is the only thread here
                        self._moved.notify_all()
                if message is None:
                    continue
                at = message[0].get("number", JOBS)
                if at in self._wanted or at == JOBS:  # else the answer to a call that was given up
                    self._received[at] = message
            self._wanted.discard(number)
            return self._received.pop(number)


# one job, or batch, and the requests of its handler to the parent
class Turn:
    def __init__(self, child: Child, number: int) -> None:
        self._child = child
        self._number = number

    def ask(self, head: Head, parts: Sequence[bytes] = ()) -> Message:
        return self._child.ask({**head, "turn": self._number}, parts)

    def tell(self, head: Head) -> None:
        self._child.link.send({**head, "turn": self._number})


class Child:
    def __init__(self, link: Link, program: Program, functions: Functions) -> None:
        self.link = link
        self._program = program
        self._functions = functions
        self._mail = Mailbox(link)
        self._numbers = itertools.count(1)
        self._loop = asyncio.Runner()  # which makes a loop when it is used

    def ask(self, head: Head, parts: Sequence[bytes]) -> Message:
        number = next(self._numbers)
        self._mail.expect(number)
        self.link.send({**head, "number": number}, parts)
        answer = self._mail.take(number)
        if (error := answer[0].get("error")) is not None:
            raise remade(error)
        return answer

    def run(self) -> None:
        self.link.send({"is": "ready"})
        with suppress(Broken):
            while (message := self._mail.take(JOBS))[0]["is"] == "job":
                self._serve(*message)
        self._loop.close()

    def _serve(self, head: Head, parts: list[bytes]) -> None:
        answer: Head = {"is": "done"}
        data: list[bytes] = []
        function, encode = self._functions[head["kind"]]
        turn = Turn(self, head["turn"])
        result: Any = None
        error: BaseException | None = None
        batch = self._program.batch
        try:
            jobs = [self._job(turn, *one) for one in zip(head["jobs"], parts, strict=True)]
            if not batch:
                object.__setattr__(jobs[0], "_steps", partial(self._steps, turn, function))
            with continued(head["trace"]) if head["trace"] else NOWHERE:
                result, error = self._handled(function, jobs)
            if not batch:
                error, result = meant(jobs[0].id, error, result, batch=False)
            if batch and error is None:
                answer["result"] = packed(result)
            elif error is None:
                if isinstance(result, (Next, FanOut)) and isinstance(jobs[0], FlowJob):
                    answer["outcome"], data = stages.told(result, self._program.codec)
                    result = result.result
                if result is not None:
                    self._result(answer, data, result, encode)
        except BaseException as wrong:  # a payload, or the class of an exception, may run any code
            error = wrong
        if error is not None:
            answer["error"] = told(error)
            answer["memory"] = isinstance(error, MemoryError)
        if self._program.measures:
            answer["rss"] = resident() or peak()
        self.link.send(answer, data)

    def _handled(
        self, function: Callable[..., Any], jobs: list[Job[Any]]
    ) -> tuple[Any, BaseException | None]:
        """Run the handler, and end the run of its steps. Return its result and its error."""
        result: Any = None
        error: BaseException | None = None
        try:
            argument: Any = jobs if self._program.batch else jobs[0]
            result = copy_context().run(function, argument)
            if type(result) not in PLAIN and inspect.isawaitable(result):
                result = self._awaited(result)
        except BaseException as raised:
            error = raised
        run = None if self._program.batch else run_of(jobs[0])
        if run is not None:
            error = self._left(jobs[0], run, error, result)
        return result, error

    def _left(
        self, job: Any, run: Any, error: BaseException | None, result: Any
    ) -> BaseException | None:
        """Suspend a run, or end it. Return the error of its handler, as a worker does."""
        run.claim.ran = time.monotonic() - run.claim.started
        try:
            left = job._steps.leave(error, result)  # noqa: SLF001 - we are its worker
            error = self._awaited(left) if inspect.isawaitable(left) else left
        except BaseException as raised:
            error = raised
        run.close(completed=error is None and not run.lost)
        run.claim.ended = True  # no thread that is left takes steps
        run.ended = run.ended or RunLost(job.id)
        return error

    def _result(
        self, answer: Head, data: list[bytes], result: Any, encode: Callable[[Any], Any] | None
    ) -> None:
        try:
            own: Any = result if encode is None else encode(result)
            codec = BytesCodec() if encode is not None else untyped(self._program.codec)
            data.append(as_bytes(codec.encode(own)))
        except Exception as wrong:  # the handler has succeeded all the same
            answer["unencoded"] = told(wrong)

    def _awaited(self, awaitable: Any) -> Any:
        async def waits() -> Any:
            return await awaitable

        return self._loop.run(waits(), context=copy_context())

    def _steps(self, turn: Turn, function: Callable[..., Any], job: Job[Any]) -> Any:
        loop = self._loop.get_loop if inspect.iscoroutinefunction(function) else None
        return steps(turn, self._program.codec, job, loop)

    def _job(self, turn: Turn, head: Head, part: bytes) -> Job[Any]:
        queue_name = head["queue"]
        if head["shard"] is not None:
            queue_name = ShardedName.at(queue_name, head["shard"])
        payload = self._program.codec.decode(part)
        job = make_job(
            head["id"], payload, queue_name, head["headers"], head["attempt"], head["enqueued_at"]
        )
        state = head.get("flow")
        if state is None:
            return job

        def read(which: str, name: str) -> Any:
            _, answer = turn.ask({"is": "result", "which": which, "name": name})
            return untyped(self._program.codec).decode(answer[0]) if answer else None

        return stages.staged(job, state, read)


def peak() -> int:
    # bytes, where the system tells no other figure
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


class _Forwarding(logging.Handler):
    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
        with suppress(Broken):
            self._link.send(
                {
                    "is": "log",
                    "name": record.name,
                    "level": record.levelno,
                    "text": text,
                    "path": record.pathname,
                    "line": record.lineno,
                    "created": record.created,
                }
            )
