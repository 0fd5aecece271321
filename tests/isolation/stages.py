"""The handlers of a flow's stages, which run in child processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from headrace import FanOut, FlowJob, NewJob, Next, Tasks

FAR = Tasks("shop/pack", url="redis://127.0.0.1:1")  # no server listens there


@FAR.task
def packing() -> None: ...


def pick(job: FlowJob) -> FanOut:
    """Begin a child for each word of the order, by its name."""
    words = job.payload.decode().split()
    children = (NewJob(word.encode(), id=word, headers={"word": word}) for word in words)
    return FanOut(children, result=b"%d" % len(words), failed=job.attributes["failed"])


def pack(job: FlowJob) -> bytes:
    """Fail as the payload says, or return the word and the result of the parent."""
    word = job.payload.decode()
    if word == "dies" or (word == "first" and job.attempt == 1):
        os._exit(3)
    return f"{job.headers['word']} of {job.results['pick'].decode()} in {os.getpid()}".encode()


async def pack_async(job: FlowJob) -> bytes:
    await asyncio.sleep(0)
    return pack(job)


def bill(job: FlowJob) -> Next:
    """List the results of the children, and the failed ones."""
    told = [f"{name}: {result.decode()}" for name, result in job.children.items()]
    failed = [f"{name}: failed" for name in job.failed]
    return Next("send", "; ".join([*sorted(told), *failed]).encode())


def send(job: FlowJob) -> Any:
    assert "missing" not in job.results
    return f"{job.attributes['customer']}: {job.results['bill'].decode()} {os.getpid()}".encode()


OUTCOMES: dict[str, Callable[[], Any]] = {
    "bytes": lambda: FanOut(b"children"),
    "conditional": lambda: FanOut([NewJob(b"", unique_for=5)]),
    "endless": lambda: FanOut(iter(lambda: b"", None), "pack"),
    "object": lambda: FanOut([object()], "pack"),
    "elsewhere": lambda: Next("nowhere"),
    "far": lambda: FanOut([packing.new()]),
    "unencoded": lambda: Next("send", object()),
}


def splits(job: FlowJob) -> Any:
    return OUTCOMES[job.payload.decode()]()


def ends(job: FlowJob) -> None: ...


def shares(job: FlowJob) -> FanOut:
    """Children and results are JSON."""
    return FanOut([{"number": number} for number in job.payload["numbers"]], result={"of": "pick"})


def doubles(job: FlowJob) -> Any:
    return {"twice": 2 * job.payload["number"], "beside": job.results["pick"]["of"]}


def adds(job: FlowJob) -> Any:
    return sum(one["twice"] for one in job.children.values())


def unread(job: FlowJob) -> bytes:
    """Read a result that does not decode, and then another."""
    try:
        job.results["pick"]
    except Exception as error:
        return f"{type(error).__name__}: {error}".encode()
    return b"it was read"
