"""The parent's side of an isolated handler. It is a plain function, which waits for a child."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from attrs import define, evolve

from headrace._core.effects import Call, Send, Sleep, send
from headrace._core.steps.run import Run
from headrace._isolation import stages
from headrace._isolation.carried import innermost, unwrapped, wrapped
from headrace._isolation.children import Children, Process
from headrace._isolation.described import carried_out, described
from headrace._isolation.link import Broken, Head, Message
from headrace._isolation.values import packed, remade, told, unpacked
from headrace._model.codec import as_bytes, untyped
from headrace._model.flow import FlowJob
from headrace._model.job import Job
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.op import Op
from headrace._telemetry.steps import record_span
from headrace._telemetry.tracing import handed_on, tracer
from headrace.errors import Killed, RunLost

CALLED = ("note", "missing", "away")  # callbacks of a run whose answer no child waits for


# a result that the child could not encode, as nothing else can
class Unencoded:
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
        self.inner = innermost(self.codec)
        self.__module__ = self.function.__module__
        self.__qualname__ = self.function.__qualname__

    def __call__(self, argument: Any) -> Any:
        jobs: Sequence[Job[Any]] = argument if self.batch else [argument]
        encode = self.inner.encode
        payloads = [as_bytes(encode(job.payload)) for job in jobs]
        head = self._head(jobs)
        dying: Run | None = None
        while True:
            child = self.children.take()
            head["turn"] = child.jobs
            child.job = jobs[0].id
            try:
                child.link.send(head, payloads)
            except Broken:  # it died while it had no job
                self.children.died(child)
                continue
            turn = _Turn(self, child, jobs, dying)
            try:
                return turn.result()
            except Killed as error:
                dying = turn.dies_of(error) if dying is None else None
                if dying is None:
                    raise

    def _head(self, jobs: Sequence[Job[Any]]) -> Head:
        return {
            "is": "job",
            "kind": self.kind,
            "trace": handed_on(),
            "jobs": list(map(_told, jobs)),
        }


def _told(job: Job[Any]) -> Head:
    made = {
        "id": job.id,
        "queue": job.queue,
        "shard": getattr(job.queue, "shard", None),
        "headers": dict(job.headers),
        "attempt": job.attempt,
        "enqueued_at": job.enqueued_at,
    }
    if isinstance(job, FlowJob):
        made["flow"] = stages.described(job)
    return made


@define(eq=False)
class _Turn:
    handler: Isolated
    child: Process
    jobs: Sequence[Job[Any]]
    dying: Run | None  # its child was killed: this one is to undo its steps
    steps: Any = None

    def dies_of(self, error: Killed) -> Run | None:
        # the run of its job if that dies with the child, and has steps to undo
        if self.steps is None:
            return None
        run = evolve(self.steps.run)
        try:
            return run if self.steps.drive(_dies(run, error)) else None
        except (Exception, RunLost):  # that it dies could not be recorded
            return None

    def result(self) -> Any:
        """Wait for the end. Raises the error of the handler, or `Killed`."""
        children = self.handler.children
        deadline = self.handler.deadline
        end = float("inf") if deadline is None else time.monotonic() + deadline
        receive = self.child.link.receive
        while True:
            try:
                message = receive()
                if message is not None and message[0]["is"] != "done":
                    self._serve(*message)
                    message = None
                gone = message is None and self.child.gone()
            except (Broken, KeyError, TypeError, AttributeError):  # it has ended, or sent nonsense
                raise children.died(self.child) from None
            if message is not None:
                return self._ended(*message)
            if gone:
                raise children.died(self.child)
            if time.monotonic() >= end:
                raise children.kill(self.child, f"deadline of {deadline:g} s", "deadline")
            if all(job.lost for job in self.jobs):
                raise children.kill(self.child, "its job was taken away", "lost")

    def _ended(self, head: Head, parts: list[bytes]) -> Any:
        children = self.handler.children
        self.child.rss = head.get("rss", 0)
        memory = children.isolation.memory_mb
        if head.get("memory") and memory is not None:
            raise children.died(self.child, f"out of memory: {memory:,.0f} MiB")
        children.give(self.child)
        if (error := head.get("error")) is not None:
            raise remade(error)
        if self.handler.batch:
            return unpacked(head["result"])
        outcome = head.get("outcome")
        if outcome is None:
            return self._result(head, parts)
        number = len(outcome.get("children", ()))
        result = self._result(head, parts[number:])
        return stages.remade(outcome, parts[:number], self.handler.inner, result)

    def _result(self, head: Head, parts: list[bytes]) -> Any:
        if (why := head.get("unencoded")) is not None:
            return Unencoded(remade(why))
        if not parts:
            return None
        if self.handler.bare:
            return parts[0]
        return untyped(self.handler.inner).decode(parts[0])

    # -- requests of the child ---------------------------------------------------------------------

    def _serve(self, head: Head, parts: list[bytes]) -> None:
        kind = head["is"]
        if kind == "log":
            _log(head)
        elif head["turn"] != self.child.jobs:  # of a thread that a handler has left behind
            self._answer(head, None, RunLost("an earlier one"))
        elif kind == "depart":
            self._depart(lost=head["lost"])
        elif kind in CALLED:
            getattr(self.steps.run.callbacks, kind)(*head["args"])
        elif kind == "span":
            _span(head)
        elif kind == "ops":  # it lasts as long as the server is away, and the deadline holds
            self.handler.children.sender.submit(self._asked, head, parts)
        else:
            self._asked(head, parts)

    def _asked(self, head: Head, parts: list[bytes]) -> None:
        error: BaseException | None = None
        answer: Message | None = None
        try:
            answer = self._answered(head, parts)
        except BaseException as raised:
            error = raised
        self._answer(head, answer, error)

    def _answer(
        self, head: Head, answer: Message | None, error: BaseException | None = None
    ) -> None:
        number = head.get("number")
        if number is None:
            return
        made, data = answer or ({"error": told(error or Killed("no answer"))}, [])
        with suppress(Broken):  # it has died, which its own thread finds
            self.child.link.send({"is": "answer", "number": number, **made}, data)

    def _answered(self, head: Head, parts: list[bytes]) -> Message:
        if head["is"] == "result":
            return {}, self._kept(head["which"], head["name"])
        if self.steps is None:
            self.steps = cast("Any", self.jobs[0])._taker()  # noqa: SLF001 - we are its handler
        run: Run = self.steps.run
        codec = run.ops.codec
        match head["is"]:
            case "run":
                about = described(self.dying or run, wraps=innermost(codec) is not codec)
                return {"spans": tracer() is not None}, [about]
            case "wrap":
                return {}, [wrapped(codec, head["path"], parts[0])]
            case "unwrap":
                return {}, [unwrapped(codec, head["path"], parts[0])]
            case "judge":
                return {"why": run.callbacks.judged(remade(head["error"]), None, head["anew"])}, []
            case "ops":
                run.parting = head["parting"]
                ops = carried_out(head["ops"], parts)
                replies = packed(self.steps.drive(_sent(ops, head["within"])))
                run.recorded = run.recorded or any(op.name == "step" for op in ops)
                return {"replies": replies}, []
            case other:
                raise Killed(f"the child sent {other!r:.100}")

    def _kept(self, which: str, name: str) -> list[bytes]:
        if which not in stages.MAPPINGS:
            raise Killed(f"the child asked for {which!r:.100}")
        value = getattr(self.jobs[0], which)[name]
        if value is None:
            return []
        return [as_bytes(untyped(self.handler.inner).encode(value))]

    def _depart(self, *, lost: bool) -> None:
        """Let the job leave its worker, as its run is suspended, or its lease is lost."""
        run = self.steps.run
        run.ended = RunLost(run.claim.job.id)
        if lost:
            self.jobs[0].lost.set()
        with suppress(RunLost):  # the worker has stopped
            self.steps.drive(_departed(run))


def _sent(ops: Sequence[Op[Any]], within: float | None) -> Call[Any]:
    return (yield Send(ops, within))


def _dies(run: Run, error: Killed) -> Call[bool]:
    if run.lost:
        return False
    # the child has recorded them
    run.records = step_ops.own((yield from send(step_ops.read(run.ops, run.claim))))
    if run.undos.dies(run) or not run.undos.due(run):
        return False
    why = run.dies_of(error)
    if why is None:
        return False
    yield from run.undos.die(run, why)
    return True


def _departed(run: Run) -> Call[None]:
    yield Sleep(0.0)  # the driver of an engine goes on, in its own thread if it has one
    run.callbacks.depart(run.claim)


def _span(head: Head) -> None:
    about = {name: head[name] for name in ("kind", "name", "began", "ended", "replayed")}
    record_span(**about, error=None if head["error"] is None else remade(head["error"]))


def _log(head: Head) -> None:
    """Log a record of the child here, where the logging of the program is set up."""
    logger = logging.getLogger(head["name"])
    if logger.isEnabledFor(head["level"]):
        record = logger.makeRecord(
            head["name"], head["level"], head["path"], head["line"], head["text"], (), None
        )
        record.created = head["created"]
        logger.handle(record)
