"""The twins: the same files, classes, methods, parameters and bodies; `await` is the only difference."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace._net.aio.executor import AsyncExecutor
from headrace._net.base import retries as retrying
from headrace._net.sync.executor import Executor
from headrace._telemetry.client import Outage

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
    "cron",
    "dead",
    "delayed",
    "events",
    "flow",
    "handler",
    "middleware",
    "new",
    "on_start",
    "on_stop",
    "options",
    "run",
    "running",
    "stage",
    "start",
    "task",
    "tasks",
    "waiting",
}
LIFE = {"__enter__": "__aenter__", "__exit__": "__aexit__"}
PACKAGE = Path(inspect.getfile(headrace)).parent
VERBS = (
    "queue",
    "lease",
    "flow",
    "events",
    "tasks",
    "producing",
)  # the files whose classes a user calls: every body is held to its twin's


def names(kind: type) -> set[str]:
    """The public methods of a class."""
    return {name for name, member in inspect.getmembers(kind, callable) if not name.startswith("_")}


def methods() -> Iterator[tuple[type, type, str]]:
    for kind, twin in TWINS:
        for name in sorted(names(kind) - ONLY_SYNC | {"__init__"}):
            yield kind, twin, name


def same(text: object) -> str:
    """An annotation, or a line of code, as the other colour writes it."""
    plain = str(text).replace("redis.asyncio", "redis").replace("headrace._async", "headrace._sync")
    plain = plain.replace("asyncio.sleep", "time.sleep")
    plain = re.sub(r"^Awaitable\[(\w+)\]$", r"\1", plain)  # a method that gives a future, or a coroutine of another
    for theirs in (
        "AsyncIterator",
        "AsyncIterable",
        "AsyncLease",
        "AsyncReceipt",
        "AsyncQueue",
        "AsyncFlow",
        "AsyncExecutor",
        "AsyncTask",
        "AsyncClient",
    ):
        plain = plain.replace(theirs, theirs.removeprefix("Async"))
    plain = plain.replace("each(jobs)", "jobs").replace(" | Iterable[Any]", "")  # what is iterated may be asynchronous
    for theirs in (
        "AsyncProducing",
        "AsyncDriver",
        "AsyncWaiters",
        "AsyncEventStream",
        "AsyncListening",
        "AsyncSubscription",
    ):
        plain = plain.replace(theirs, theirs.removeprefix("Async"))
    for ours, theirs in LIFE.items():
        plain = plain.replace(theirs, ours)
    return plain.replace("__anext__", "__next__").replace("__aiter__", "__iter__").replace("StopAsync", "Stop")


@pytest.mark.parametrize(("kind", "twin"), TWINS)
def test_twins_have_the_same_methods(kind: type, twin: type) -> None:
    assert names(twin) - ONLY_ASYNC == names(kind) - ONLY_SYNC
    assert names(twin) & ONLY_ASYNC == names(twin) - names(kind)
    assert not names(twin) & ONLY_SYNC


@pytest.mark.parametrize(("kind", "twin", "name"), list(methods()))
def test_methods_take_the_same_and_answer_the_same(kind: type, twin: type, name: str) -> None:
    ours, theirs = (inspect.signature(getattr(colour, name)) for colour in (kind, twin))
    expected = [(p.name, p.kind, p.default, same(p.annotation)) for p in ours.parameters.values()]
    found = [(p.name, p.kind, p.default, same(p.annotation)) for p in theirs.parameters.values()]
    assert found == expected
    if (kind, name) != (headrace.Worker, "start"):  # each has an engine of its own
        assert same(theirs.return_annotation) == same(ours.return_annotation)


@pytest.mark.parametrize(("kind", "twin"), USED)
def test_the_twin_s_methods_are_awaited(kind: type, twin: type) -> None:
    for name in names(kind):
        assert not inspect.iscoroutinefunction(getattr(kind, name)), name
        awaited = name not in NEVER_AWAITED or (kind, name) == (headrace.Flow, "start")
        assert inspect.iscoroutinefunction(getattr(twin, name)) == awaited, name


@pytest.mark.parametrize(("kind", "twin"), [TWINS[0], TWINS[1], TWINS[4], TWINS[5]])
def test_both_are_context_managers_of_their_own_kind(kind: Any, twin: Any) -> None:
    for name, aname in LIFE.items():
        assert inspect.signature(getattr(kind, name)).parameters.keys() == inspect.signature(
            getattr(twin, aname)
        ).parameters.keys()  # fmt: skip
        assert not hasattr(twin, name)
        assert not hasattr(kind, aname)


def test_the_colours_have_the_same_files() -> None:
    """A twin is found by changing one folder name. What only one colour needs is named here."""
    ours, theirs = ({path.stem for path in (PACKAGE / colour).glob("*.py")} for colour in ("_sync", "_async"))
    assert ours - theirs == {"discovery"}
    assert theirs - ours == {"coalesce", "line", "loops", "pulse", "sentinel", "stalls", "threads", "watchdog"}


@pytest.mark.parametrize("file", VERBS)
def test_every_verb_s_body_is_its_twin_s(file: str) -> None:
    """Without `async` and `await` the two files read the same, method by method."""
    ours, theirs = (_bodies(PACKAGE / colour / f"{file}.py") for colour in ("_sync", "_async"))
    assert ours.keys() - theirs.keys() == theirs.keys() - ours.keys() == set()
    assert len(ours) >= 4  # something is compared
    differing = {name for name in ours if ours[name] != theirs[name]}
    assert not differing, "\n".join(f"{name}:\n  {ours[name]}\n  {theirs[name]}" for name in differing)


def test_a_verb_that_sends_something_else_is_found(tmp_path: Path) -> None:
    """The comparison above is no formality."""
    source = (PACKAGE / "_async" / "queue.py").read_text("utf-8")
    changed = tmp_path / "queue.py"
    changed.write_text(source.replace("self._whole.levels()", "self._whole.paused()"), "utf-8")
    ours, theirs = _bodies(PACKAGE / "_sync" / "queue.py"), _bodies(changed)
    assert {name for name in ours if ours[name] != theirs[name]} == {"Queue.levels"}


def _bodies(path: Path) -> dict[str, list[str]]:
    """The methods of the classes of a file, by the names they have without a colour."""
    tree = ast.parse(path.read_text("utf-8"))
    return {
        f"{same(kind.name)}.{same(method.name)}": _bare(method)
        for kind in tree.body
        if isinstance(kind, ast.ClassDef)
        for method in kind.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _bare(method: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The statements of a method in one colour, its documentation left out."""

    class Plain(ast.NodeTransformer):
        def visit_Await(self, node: ast.Await) -> Any:
            return self.visit(node.value)

        def visit_AsyncFor(self, node: ast.AsyncFor) -> Any:
            self.generic_visit(node)
            return ast.copy_location(ast.For(node.target, node.iter, node.body, node.orelse), node)

        def visit_ListComp(self, node: ast.ListComp) -> Any:
            self.generic_visit(node)
            for generator in node.generators:
                generator.is_async = 0
            return node

    found = [
        ast.unparse(Plain().visit(statement)) for statement in method.body[ast.get_docstring(method) is not None :]
    ]
    return [same(line) for line in found]


def test_both_executors_follow_one_policy() -> None:
    """What is waited out, for how long, and with what between is said once."""
    assert inspect.getsource(Executor).count("policy(") == inspect.getsource(AsyncExecutor).count("policy(") == 1
    policy = retrying.policy(retrying.Patience(Outage({}), lambda: 5.0, 1.0, retrying.Trip([])))
    assert policy.keys() == {"retry", "wait", "stop", "reraise", "before"}
