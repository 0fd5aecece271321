"""Calls that can't work. Each error names the way out, and the call has no effect."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import redis

from headrace import (
    AsyncFlow,
    AsyncQueue,
    AsyncTasks,
    AsyncWorker,
    ConfigurationError,
    Debounce,
    Flow,
    Limit,
    Queue,
    Rate,
    Retry,
    Tasks,
    Throttle,
    Worker,
)
from tests.support.facts import each

NOWHERE = "redis://127.0.0.1:1"


class Kinds(NamedTuple):
    """The classes of one colour."""

    queue: Any
    worker: Any
    flow: Any
    tasks: Any


COLOURS = [Kinds(Queue, Worker, Flow, Tasks), Kinds(AsyncQueue, AsyncWorker, AsyncFlow, AsyncTasks)]
BOTH = each("kinds", COLOURS)


def handle(job: Any) -> None:
    """A handler."""


def refused(call: Callable[[], Any], *words: str, kind: type[Exception] = TypeError) -> None:
    """Check that the call raises, and that the error has all *words*."""
    with pytest.raises(kind) as raised:
        call()
    for word in words:
        assert word in str(raised.value)


# -- decorators ------------------------------------------------------------------------------------


@BOTH
def test_a_decorator_without_its_argument(kinds: Kinds) -> None:
    """Such a decorator would register no handler without a message."""
    worker, flow = kinds.worker(NOWHERE), kinds.flow("f", url=NOWHERE)
    worker.handler("other")(handle)
    refused(lambda: worker.handler(handle), "@worker.handler takes a queue, or its name", "handle")
    refused(
        lambda: worker.batch_handler(handle), "@worker.batch_handler takes a queue, or its name"
    )
    refused(
        lambda: flow.stage(handle),
        "@flow.stage takes a name: write @flow.stage(...) over",
        "handle",
    )
    refused(lambda: worker.handler(5), "@worker.handler takes a queue, or its name, not int")
    assert list(worker.handlers) == ["other"]


@BOTH
def test_what_is_no_handler(kinds: Kinds) -> None:
    worker, flow = kinds.worker(NOWHERE), kinds.flow("f", url=NOWHERE)
    refused(lambda: worker.handler("q")("handle"), "a handler must be callable, 'handle' is not")
    refused(lambda: worker.batch_handler("q")(None), "a handler must be callable, None is not")
    refused(lambda: flow.stage("s")(5), "a handler must be callable, 5 is not")
    assert worker.handlers == {}


@BOTH
def test_a_stage_that_leads_nowhere(kinds: Kinds) -> None:
    """The stage may be declared later, so the first call raises the error."""
    flow = kinds.flow("f", url=NOWHERE)
    flow.stage("first", next="nosuch")
    refused(
        lambda: flow._start(b"x", None, None, None, None, None, None),
        "leads to 'nosuch'",
        kind=ConfigurationError,
    )


@BOTH
def test_an_embedded_server_needs_a_directory(kinds: Kinds) -> None:
    for make in (kinds.queue, kinds.flow):
        refused(
            lambda make=make: make("q", url="embedded:"),
            "names no directory",
            kind=ConfigurationError,
        )
    refused(
        lambda: kinds.worker("embedded:"),
        "names no directory: give embedded:./data",
        kind=ConfigurationError,
    )


# -- names -----------------------------------------------------------------------------------------


def function(name: str) -> None:
    """A task."""


async def function_async(name: str) -> None:
    """A task."""


@BOTH
@each(
    ("of", "name", "says"),
    [
        ("queue", "pause", "it is queue.admin.pause"),
        ("queue", "purge", "it is queue.admin.purge"),
        ("queue", "redrive", "it is queue.admin.redrive"),
        ("queue", "schedule", "it is queue.admin.schedule"),
        ("queue", "workers", "it is queue.admin.workers"),
        ("queue", "put", "here it is enqueue(…)"),
        ("queue", "enqueue_in", "here it is enqueue(payload, delay=…)"),
        ("queue", "dequeue", "here it is lease()"),
        ("queue", "get_job", "here it is find(id)"),
        ("queue", "enqeue", "did you mean enqueue?"),
        ("queue", "pauze", "did you mean queue.admin.pause?"),
        ("admin", "enqueue", "it is queue.enqueue"),
        ("admin", "purje", "did you mean purge?"),
        ("task", "delay", "here it is enqueue(…)"),
        ("task", "apply_async", "here it is enqueue(…)"),
        ("task", "result", "it is tasks.result"),
        ("task", "enqueue_many", "it is tasks.enqueue_many"),
        ("task", "s", "here it is new(…)"),
        ("tasks", "enqueue", "it is tasks.queue.enqueue"),
        ("tasks", "pause", "it is tasks.queue.admin.pause"),
        ("tasks", "tsk", "did you mean task?"),
        ("worker", "shutdown", "here it is stop()"),
        ("worker", "handle", "did you mean handler?"),
        ("flow", "stagee", "did you mean stage?"),
    ],
)
def test_a_name_that_is_not_there(kinds: Kinds, of: str, name: str, says: str) -> None:
    """The names belong to operators or other libraries, or are misspelt."""
    tasks = kinds.tasks("q", NOWHERE)
    queue, task = (
        kinds.queue("q", NOWHERE),
        tasks.task(function if kinds.queue is Queue else function_async),
    )
    found = {
        "queue": queue, "admin": queue.admin, "task": task, "tasks": tasks,
        "worker": kinds.worker(NOWHERE), "flow": kinds.flow("f", NOWHERE),
    }[of]  # fmt: skip
    refused(lambda: getattr(found, name), f"{type(found).__name__!r} object has no attribute {name!r}", says,
            kind=AttributeError)  # fmt: skip
    assert not hasattr(found, "quite_another")
    assert not hasattr(found, "__nothing__")


@each(
    ("kind", "wrong", "right"),
    [
        (Retry, "attemps_", "attempts"),
        (Rate, "burts", "burst"),
        (Limit, "kee", "key"),
        (Debounce, "maxwait", "max_wait"),
        (Throttle, "second", "seconds"),
    ],
)
def test_an_argument_of_a_value_that_is_not_there(kind: Any, wrong: str, right: str) -> None:
    says = rf"^{kind.__name__}\(\) got an unexpected keyword argument '{wrong}', did you mean '{right}'\?$"
    with pytest.raises(TypeError, match=says):
        kind(5, **{wrong: 5})
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'quite_another'$"):
        kind(5, quite_another=5)


@BOTH
def test_an_argument_of_a_verb_that_is_not_there(kinds: Kinds) -> None:
    """The call has no effect. Other errors are unchanged, and the verb is still a coroutine
    function."""
    admin = kinds.queue("q", NOWHERE).admin

    def call(verb: str, *args: Any, **given: Any) -> Any:
        answer = getattr(admin, verb)(*args, **given)
        return asyncio.run(answer) if inspect.iscoroutine(answer) else answer

    refused(lambda: call("schedule", "n", b"x", everyy=5),
            "schedule() got an unexpected keyword argument 'everyy', did you mean 'every'?")  # fmt: skip
    refused(lambda: call("redrive", form_step="a"), "did you mean 'from_step'?")
    refused(
        lambda: call("ended", knd="a"),
        "ended() got an unexpected keyword argument 'knd', did you mean 'kind'?",
    )
    refused(lambda: call("schedule", "n", b"x", every="soon"), "every")
    refused(lambda: call("schedule"), "missing 2 required positional arguments")
    assert inspect.iscoroutinefunction(admin.schedule) is (kinds.queue is AsyncQueue)
    assert "every" in inspect.signature(admin.schedule).parameters


def test_names_of_a_lease(queue: Any) -> None:
    queue.enqueue(b"x")
    lease = queue.lease()
    for name, says in {
        "ack": "complete(result)",
        "nack": "retry(",
        "payload": "it is lease.job.payload",
    }.items():
        refused(lambda name=name: getattr(lease, name), says, kind=AttributeError)
    assert lease.complete()


@BOTH
def test_the_wrong_with(kinds: Kinds) -> None:
    """The `with` statement of the other colour is refused."""
    things = [
        kinds.queue("q", NOWHERE),
        kinds.worker(NOWHERE),
        kinds.flow("f", NOWHERE),
        kinds.tasks("q", NOWHERE),
    ]

    async def enter(one: Any) -> None:
        async with one:
            pass

    for one in things:
        name = type(one).__name__
        if kinds.queue is Queue:
            refused(
                lambda one=one: asyncio.run(enter(one)),
                f"a {name} is for threads: use `with`",
                f"Async{name}",
            )
        else:
            with pytest.raises(TypeError, match=f"an {name} is for asyncio: use `async with`"), one:
                pass


@BOTH
def test_urls_by_place(kinds: Kinds) -> None:
    """Every function that connects treats a URL alike."""
    things = [kinds.queue("q", NOWHERE), kinds.flow("f", NOWHERE), kinds.tasks("q", NOWHERE).queue]
    assert {one._address.url for one in [*things, kinds.worker(NOWHERE)]} == {NOWHERE}
    refused(
        lambda: kinds.queue("q", redis.Redis()), "url must be a str, not Redis; a client is client="
    )
