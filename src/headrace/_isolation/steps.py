"""The steps of a job in a child. They are the real ones, and only their operations are sent to the
parent, which has the connection.

The parent describes its run once. It is pickled, as the program of the child is. Whatever the child
says is plain data: an operation has the name of its script, its keys and its arguments, and its
answer is the raw reply.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, cast

from attrs import asdict, evolve, frozen

from headrace._codecs.recorded import Recorded
from headrace._core.steps.run import Callbacks, Run
from headrace._core.verdicts import meant
from headrace._isolation.described import TRACE
from headrace._isolation.link import Head, Message
from headrace._isolation.values import packed, told, unpacked
from headrace._model.codec import as_bytes, untyped
from headrace._model.job import Job
from headrace._protocol.op import Op
from headrace._telemetry.steps import elsewhere
from headrace._telemetry.tracing import injected

# a thread for each call that a coroutine waits for: a job has 1,000 records at most
WAITING = ThreadPoolExecutor(1000, "headrace-ask")


class Asks(Protocol):
    def ask(self, head: Head, parts: Sequence[bytes] = ()) -> Message: ...

    def tell(self, head: Head) -> None: ...


@frozen
class Through:
    """The codec of a queue in a child, which has only the innermost one. The parent puts the others
    around it, and takes them off.
    """

    codec: Any
    link: Asks
    binds: bool
    path: tuple[tuple[str, ...], ...] = ()  # how it was bound, for the parent

    def bound(self, queue: str, namespace: str = "headrace") -> Through:
        return evolve(self, path=(*self.path, ("bound", queue, namespace)))

    def of(self, id: str) -> Through:
        return evolve(self, path=(*self.path, ("of", id)))

    def grouped(self) -> Through:
        return evolve(self, path=(*self.path, ("grouped",)))

    def encode(self, payload: Any) -> bytes:
        data = as_bytes(untyped(self.codec).encode(payload))
        return self.link.ask({"is": "wrap", "path": self.path}, (data,))[1][0]

    def decode(self, data: bytes) -> Any:
        inside = self.link.ask({"is": "unwrap", "path": self.path}, (data,))[1][0]
        return untyped(self.codec).decode(inside)


@frozen
class Executor:
    """Lets the parent send the operations of a run."""

    link: Asks
    run: Run

    def run_all(self, ops: Sequence[Op[Any]], within: float | None = None) -> list[Any]:
        rows = [[op.name, [*op.keys], len(op.args), op.lane_prefix, _wait(op)] for op in ops]
        head = {"is": "ops", "ops": rows, "within": within, "parting": self.run.parting}
        answer, _ = self.link.ask(head, [_argument(arg) for op in ops for arg in op.args])
        replies = unpacked(answer["replies"])
        return [op.decode(reply) for op, reply in zip(ops, replies, strict=True)]


@frozen
class AsyncExecutor:
    inner: Executor

    async def run_all(self, ops: Sequence[Op[Any]], within: float | None = None) -> list[Any]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(WAITING, self.inner.run_all, ops, within)


def _wait(op: Op[Any]) -> Any:
    return None if op.durability is None else packed(asdict(op.durability.wanted))


def _argument(arg: str | bytes | int) -> bytes:
    if isinstance(arg, str):
        return arg.encode()
    return b"%d" % arg if isinstance(arg, int) else bytes(arg)


def _span(
    link: Asks,
    kind: str,
    name: str,
    began: int,
    ended: int,
    replayed: bool,
    error: BaseException | None,
) -> None:
    told_error = None if error is None else told(error)
    about = {"kind": kind, "name": name, "began": began, "ended": ended, "replayed": replayed}
    link.tell({"is": "span", **about, "error": told_error})


def steps(link: Asks, codec: Any, job: Job[Any], loop: Callable[[], Any] | None) -> Any:
    """Make the object by which a handler takes steps. *loop* gives the event loop of a
    coroutine.
    """
    head, (described,) = link.ask({"is": "run"})
    elsewhere[:] = [partial(_span, link)] if head["spans"] else []
    run: Run
    run, trace, (wraps, binding) = pickle.loads(described)  # noqa: S301 - of our parent
    claim: Any = run.claim
    claim.job = job
    if trace is not None:
        setattr(claim, TRACE, trace)
    ops = evolve(run.ops, codec=Through(codec, link, binding) if wraps else codec)

    def depart(_claim: object) -> None:
        link.tell({"is": "depart", "lost": bool(job.lost)})

    def call(name: str, *args: str) -> None:
        link.tell({"is": name, "args": args})

    def judged(error: BaseException | None, result: Any, anew: bool) -> str | None:
        wrong, _ = meant(job.id, error, result, batch=False)
        if wrong is None:
            return None
        answer, _ = link.ask({"is": "judge", "error": told(wrong), "anew": anew})
        return cast("str | None", answer["why"])

    values = Recorded(ops.bound)
    callbacks = Callbacks(
        depart,
        partial(call, "note"),
        judged,
        partial(call, "missing"),
        injected,
        partial(call, "away"),
        home=run.callbacks.home,
    )
    run = evolve(run, ops=ops, values=values, callbacks=callbacks)
    executor = Executor(link, run)
    if loop is None:
        from headrace._net.sync.steps import Steps, driver, raised

        return Steps(run, driver(cast("Any", executor), raised))
    from headrace._net.aio import steps as aio

    drive = aio.driver(cast("Any", AsyncExecutor(executor)), aio.raised)
    return aio.AsyncSteps(run, drive, loop())
