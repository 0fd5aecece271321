"""The generated twins have the same files, classes, methods, parameters and bodies. Only `await`
differs."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.aio.trips import AsyncTrips
from headrace._net.base import retries as retrying
from headrace._net.sync.executor import Executor
from headrace._net.sync.trips import Trips
from headrace._telemetry.client import Outage
from tests.support.facts import each

TWINS = [
    (headrace.Queue, headrace.AsyncQueue),
    (headrace.Flow, headrace.AsyncFlow),
    (headrace.Lease, headrace.AsyncLease),
    (headrace.Receipt, headrace.AsyncReceipt),
    (headrace.Worker, headrace.AsyncWorker),
    (headrace.Tasks, headrace.AsyncTasks),
    (headrace.Task, headrace.AsyncTask),
    (Executor, AsyncExecutor),
]
USED = [row for row in TWINS if row[0] is not Executor]
ONLY_ASYNC = {"serve"}  # `run` on a loop that is running
ONLY_SYNC = {"give_up"}  # a task is cancelled instead
NEVER_AWAITED = {
    "batch_handler",
    "blocked",
    "cron",
    "dead",
    "delayed",
    "events",
    "flow",
    "handler",
    "keeping",
    "middleware",
    "new",
    "on_start",
    "on_stop",
    "options",
    "receipt",
    "relay",
    "run",
    "running",
    "stage",
    "start",
    "task",
    "tasks",
    "waiting",
}
LIFE = {"__enter__": "__aenter__", "__exit__": "__aexit__"}
ROOT = Path(__file__).parents[3]


def names(kind: type) -> set[str]:
    """Return the public methods of a class."""
    return {name for name, member in inspect.getmembers(kind, callable) if not name.startswith("_")}


def methods() -> Iterator[tuple[type, type, str]]:
    for kind, twin in TWINS:
        for name in sorted(names(kind) - ONLY_SYNC | {"__init__"}):
            yield kind, twin, name


def same(text: object) -> str:
    """Return an annotation or a line of code in the other colour."""
    plain = (
        str(text)
        .replace("redis.asyncio", "redis")
        .replace("headrace._net.aio", "headrace._net.sync")
    )
    plain = plain.replace("asyncio.sleep", "time.sleep")
    # a method that gives a future, or a coroutine of another
    plain = re.sub(r"^Awaitable\[(\w+)\]$", r"\1", plain)
    for theirs in (
        "AsyncIterator",
        "AsyncIterable",
        "AsyncLease",
        "AsyncKept",
        "AsyncReceipt",
        "AsyncQueue",
        "AsyncFlow",
        "AsyncEventStream",
        "AsyncExecutor",
        "AsyncTask",
        "AsyncClient",
    ):
        plain = plain.replace(theirs, theirs.removeprefix("Async"))
    # what is iterated may be asynchronous
    plain = plain.replace("each(jobs)", "jobs").replace(" | Iterable[Any]", "")
    plain = plain.replace("Stream[Any]", "Iterable[Any]")
    for ours, theirs in LIFE.items():
        plain = plain.replace(theirs, ours)
    return (
        plain.replace("__anext__", "__next__")
        .replace("__aiter__", "__iter__")
        .replace("StopAsync", "Stop")
    )


@each(("kind", "twin"), TWINS)
def test_twins_have_the_same_methods(kind: type, twin: type) -> None:
    assert names(twin) - ONLY_ASYNC == names(kind) - ONLY_SYNC
    assert names(twin) & ONLY_ASYNC == names(twin) - names(kind)
    assert not names(twin) & ONLY_SYNC


@each(("kind", "twin", "name"), list(methods()))
def test_methods_take_the_same_and_answer_the_same(kind: type, twin: type, name: str) -> None:
    ours, theirs = (inspect.signature(getattr(colour, name)) for colour in (kind, twin))
    expected = [(p.name, p.kind, p.default, same(p.annotation)) for p in ours.parameters.values()]
    found = [(p.name, p.kind, p.default, same(p.annotation)) for p in theirs.parameters.values()]
    assert found == expected
    if (kind, name) != (headrace.Worker, "start"):  # each has an engine of its own
        assert same(theirs.return_annotation) == same(ours.return_annotation)


@each(("kind", "twin"), USED)
def test_the_twin_s_methods_are_awaited(kind: type, twin: type) -> None:
    for name in names(kind):
        assert not inspect.iscoroutinefunction(getattr(kind, name)), name
        awaited = name not in NEVER_AWAITED or (kind, name) == (headrace.Flow, "start")
        assert inspect.iscoroutinefunction(getattr(twin, name)) == awaited, name


@each(("kind", "twin"), [TWINS[0], TWINS[1], TWINS[4], TWINS[5]])
def test_both_are_context_managers_of_their_own_kind(kind: Any, twin: Any) -> None:
    for name, aname in LIFE.items():
        assert inspect.signature(getattr(kind, name)).parameters.keys() == inspect.signature(
            getattr(twin, aname)
        ).parameters.keys()  # fmt: skip
    with pytest.raises(TypeError, match="is for asyncio: use `async with`"):
        twin.__enter__(twin.__new__(twin))
    with pytest.raises(TypeError, match="is for threads: use `with`"):
        kind.__aenter__(kind.__new__(kind))


def generate(source: str) -> str:
    """Translate a module for asyncio as `.ci/twins.py` does."""
    spec = importlib.util.spec_from_file_location("twins", ROOT / ".ci" / "twins.py")
    assert spec is not None
    assert spec.loader is not None
    twins = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(twins)
    return str(twins.translated(source))


@pytest.mark.slow
def test_the_verbs_for_threads_are_generated() -> None:
    """A file that was edited by hand, or whose source has changed, is found."""
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "twins.py", "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@each(
    ("ours", "theirs"),
    [
        (
            "async def f(self) -> None:\n    await self.g()\n",
            "def f(self) -> None:\n    self.g()\n",
        ),
        ("won = (await self._run(op))[0]\n", "won = self._run(op)[0]\n"),
        ("x = (await a) or b\n", "x = a or b\n"),
        ("call((await a), b)\n", "call(a, b)\n"),
        ("async with AsyncQueue() as q:\n    pass\n", "with Queue() as q:\n    pass\n"),
        ("items = [x async for x in q]\n", "items = [x for x in q]\n"),
        ('"""An `AsyncQueue`: `await queue.close()`."""\n', '"""An `Queue`: `queue.close()`."""\n'),
        ("raise StopAsyncIteration\n", "raise StopIteration\n"),
    ],
)
def test_how_a_module_is_translated(ours: str, theirs: str) -> None:
    assert generate(ours) == theirs


def test_both_executors_follow_one_policy() -> None:
    """Both executors use one definition of the errors to wait out, the time to wait, and the
    pauses."""
    assert (
        inspect.getsource(Trips).count("policy(")
        == inspect.getsource(AsyncTrips).count("policy(")
        == 1
    )
    assert "policy(" not in inspect.getsource(AsyncExecutor) + inspect.getsource(Executor)
    policy = retrying.policy(retrying.RetryBudget(Outage({}), lambda: 5.0, 1.0, retrying.Trip([])))
    assert policy.keys() == {"retry", "wait", "stop", "reraise", "before"}
