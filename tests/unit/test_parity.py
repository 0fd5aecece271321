"""The twins: the same names, the same parameters and defaults; `await` is the only difference."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import _execute, _queue
from headrace._execute import AsyncExecutor, Executor

TWINS = [
    (headrace.Queue, headrace.AsyncQueue),
    (headrace.Flow, headrace.AsyncFlow),
    (headrace.Lease, headrace.AsyncLease),
    (headrace.Worker, headrace.AsyncWorker),
    (Executor, AsyncExecutor),
]
ONLY_ASYNC = {"serve", "run_whole"}  # `run` on a loop that is running; cancellation, which threads do not know
NEVER_AWAITED = {
    "batch_handler",
    "dead",
    "delayed",
    "events",
    "flow",
    "handler",
    "run",
    "running",
    "stage",
    "start",
    "waiting",
}
RENAMED = {
    "AsyncLease": "Lease",
    "AsyncQueue": "Queue",
    "AsyncIterator": "Iterator",
    "AsyncEvents": "Events",
    "redis.asyncio.Redis": "redis.Redis",
}
LIFE = {"__enter__": "__aenter__", "__exit__": "__aexit__"}


def names(kind: type) -> set[str]:
    """The public methods of a class."""
    return {name for name, member in inspect.getmembers(kind, callable) if not name.startswith("_")}


def methods() -> Iterator[tuple[type, type, str]]:
    for kind, twin in TWINS:
        for name in sorted(names(kind) | {"__init__"}):
            yield kind, twin, name


def same(annotation: Any) -> str:
    """An annotation as the other colour writes it."""
    text = str(annotation)
    for theirs, ours in RENAMED.items():
        text = text.replace(theirs, ours)
    return text


@pytest.mark.parametrize(("kind", "twin"), TWINS)
def test_twins_have_the_same_methods(kind: type, twin: type) -> None:
    assert names(twin) - ONLY_ASYNC == names(kind)
    assert names(twin) & ONLY_ASYNC == names(twin) - names(kind)


@pytest.mark.parametrize(("kind", "twin", "name"), list(methods()))
def test_methods_take_the_same_and_answer_the_same(kind: type, twin: type, name: str) -> None:
    ours, theirs = (inspect.signature(getattr(colour, name)) for colour in (kind, twin))
    expected = [(p.name, p.kind, p.default, same(p.annotation)) for p in ours.parameters.values()]
    found = [(p.name, p.kind, p.default, same(p.annotation)) for p in theirs.parameters.values()]
    assert found == expected
    if (kind, name) != (headrace.Worker, "start"):  # each has an engine of its own
        assert same(theirs.return_annotation) == same(ours.return_annotation)


@pytest.mark.parametrize(("kind", "twin"), TWINS[:4])
def test_the_twin_s_methods_are_awaited(kind: type, twin: type) -> None:
    for name in names(kind):
        assert not inspect.iscoroutinefunction(getattr(kind, name)), name
        awaited = name not in NEVER_AWAITED or (kind, name) == (headrace.Flow, "start")
        assert inspect.iscoroutinefunction(getattr(twin, name)) == awaited, name


@pytest.mark.parametrize(("kind", "twin"), [TWINS[0], TWINS[1], TWINS[3]])
def test_both_are_context_managers_of_their_own_kind(kind: Any, twin: Any) -> None:
    for name, aname in LIFE.items():
        assert inspect.signature(getattr(kind, name)).parameters.keys() == inspect.signature(
            getattr(twin, aname)
        ).parameters.keys()  # fmt: skip
        assert not hasattr(twin, name)
        assert not hasattr(kind, aname)


@pytest.mark.parametrize(("kind", "twin", "name"), [row for row in methods() if row[2] != "__init__"])
def test_the_twin_s_documentation_points_to_the_other(kind: type, twin: type, name: str) -> None:
    """Said once."""
    ours, theirs = (getattr(colour, name).__doc__ for colour in (kind, twin))
    assert ours
    assert (
        theirs == ours
        or theirs.startswith(f"Like `{kind.__name__}.{name}`")
        or kind in (headrace.Lease, headrace.Worker)
    )


def test_the_twins_bodies_are_the_same_code() -> None:
    """The faces are one-line methods: without `async` and `await` the two classes read the same."""
    tree = ast.parse(Path(_queue.__file__).read_text("utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    differing = set()
    for kind, twin in (("Queue", "AsyncQueue"), ("Lease", "AsyncLease")):
        ours, theirs = (
            {m.name: _bare(m) for m in classes[c].body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)}
            for c in (kind, twin)
        )
        differing |= {f"{kind}.{name}" for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]}
    differing -= {"Queue.__init__"}
    assert differing <= {"Queue._each", "Queue._perform", "Queue.peek"}, "these are not one line"


def _bare(method: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The statements of a method in one colour, its documentation left out."""

    class Plain(ast.NodeTransformer):
        def visit_Await(self, node: ast.Await) -> Any:
            return self.visit(node.value)

        def visit_AsyncFor(self, node: ast.AsyncFor) -> Any:
            self.generic_visit(node)
            return ast.copy_location(ast.For(node.target, node.iter, node.body, node.orelse), node)

    found = [
        ast.unparse(Plain().visit(statement)) for statement in method.body[ast.get_docstring(method) is not None :]
    ]
    return [same(line) for line in found]


def test_both_executors_follow_one_policy() -> None:
    """What is waited out, for how long, and with what between is said once."""
    assert inspect.getsource(Executor).count("policy(") == inspect.getsource(AsyncExecutor).count("policy(") == 1
    assert _execute.policy(5.0).keys() == {"retry", "wait", "stop", "reraise", "before_sleep"}
