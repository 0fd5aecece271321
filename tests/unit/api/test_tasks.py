"""Declarations of tasks, without a server. The tests say which are refused, and when."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from headrace import (
    AsyncTasks,
    AsyncWorker,
    ConfigurationError,
    NewJob,
    Queue,
    Retry,
    Tasks,
    Worker,
)
from headrace.codecs import Compressed, Encrypted, JSONCodec
from tests.support.facts import each

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture(params=[Tasks, AsyncTasks])
def tasks(request: pytest.FixtureRequest) -> Any:
    return request.param("mail", NOWHERE)


class Unknown:
    pass


def test_a_task_is_still_its_function(tasks: Any) -> None:
    @tasks.task
    def welcome(to: str, *, loud: bool = False) -> str:
        """Greet."""
        return to.upper() if loud else to

    assert welcome("ada", loud=True) == "ADA"
    assert (welcome.name, welcome.__name__, welcome.__doc__) == ("welcome", "welcome", "Greet.")
    assert inspect.signature(welcome) == inspect.signature(welcome.__wrapped__)
    assert "welcome" in repr(welcome)
    assert "mail" in repr(welcome)


def test_a_misspelt_option_is_named_with_the_one_that_is_meant(tasks: Any) -> None:
    @tasks.task
    def welcome(to: str) -> None: ...

    for wrong, right in (
        ("countdown", "delay"),
        ("task_id", "id"),
        ("prioriti", "priority"),
        ("unique", "unique_for"),
    ):
        with pytest.raises(
            TypeError,
            match=rf"^options\(\) got an unexpected .* '{wrong}', did you mean '{right}'\?$",
        ):
            welcome.options(**{wrong: 5})


def test_a_coroutine_function_stays_one_when_it_is_called(tasks: Any) -> None:
    @tasks.task(retry=Retry(attempts=3))
    async def welcome() -> int:
        return 5

    made = welcome()
    assert inspect.iscoroutine(made)
    made.close()


def test_new_is_a_job_of_its_kind(tasks: Any) -> None:
    @tasks.task(name="hello", priority=0)
    def welcome(to: str) -> None: ...

    job = welcome.new("ada")
    assert isinstance(job, NewJob)
    assert (job.payload, job.headers, job.queue) == (b'{"to":"ada"}', {"kind": "hello"}, "mail")
    later = welcome.options(id="a", headers={"x": "y"}).options(delay=5)
    job = later.new("ben")
    assert (job.id, job.delay, job.headers) == ("a", 5, {"kind": "hello", "x": "y"})
    assert welcome.new("ada").id is None


def test_names(tasks: Any) -> None:
    @tasks.task
    def one() -> None: ...

    with pytest.raises(ConfigurationError, match="task 'one' already"):
        tasks.task(one.__wrapped__)
    assert tasks.task(name="two")(one.__wrapped__).name == "two"
    with pytest.raises(ConfigurationError, match="no name of its own"):
        tasks.task(lambda: None)
    with pytest.raises(ValueError, match="name=''"):
        tasks.task(name="")(one.__wrapped__)
    with pytest.raises(TypeError, match="name must be a str"):
        tasks.task(name=5)(one.__wrapped__)
    with pytest.raises(TypeError, match="a task is a function"):
        tasks.task("one")


@pytest.mark.parametrize(
    ("options", "error"),
    [({"retry": 5}, TypeError), ({"deadline": 0}, ValueError), ({"deadline": "x"}, TypeError),
     ({"priority": 1}, ValueError)],
)  # fmt: skip
def test_bad_options_are_refused_where_they_are_given(
    tasks: Any, options: Any, error: type
) -> None:
    with pytest.raises(error, match=next(iter(options))):

        @tasks.task(**options)
        def one() -> None: ...


def test_a_header_of_that_name_is_the_task_s(tasks: Any) -> None:
    @tasks.task
    def one() -> None: ...

    with pytest.raises(ValueError, match="'kind' is the task's name"):
        one.options(headers={"kind": "x"})


def test_a_parameter_that_does_not_travel_is_refused_at_once(tasks: Any) -> None:
    with pytest.raises(ConfigurationError, match="task 'one': session: Unknown does not travel"):

        @tasks.task
        def one(session: Unknown) -> None: ...


def test_a_result_that_does_not_travel_is_warned_of(tasks: Any) -> None:
    with pytest.warns(UserWarning, match=r"task 'one': its result.* without a result") as found:

        @tasks.task
        def one() -> Unknown: ...

    assert found[0].filename == __file__


def test_a_type_that_is_declared_later(tasks: Any) -> None:
    @tasks.task
    def one(x: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    worker = Worker(NOWHERE)
    worker.tasks(tasks)
    with pytest.raises(ConfigurationError, match="'Later' is not defined"):
        worker.start()
    globals()["Later"] = int
    try:
        assert one.new(5).payload == b'{"x":5}'
    finally:
        del globals()["Later"]


@each("kind", [Tasks, AsyncTasks])
def test_codecs_are_of_bytes(kind: Any) -> None:
    for codec in (Compressed(), Encrypted(None, {"a": bytes(32)})):
        assert kind("mail", codec=codec).queue.ops.codec is codec
    for wrong in (JSONCodec(), Compressed(JSONCodec())):
        with pytest.raises(ConfigurationError, match="codec: arguments are JSON already"):
            kind("mail", codec=wrong)
    with pytest.raises(TypeError, match="did you mean"):
        kind("mail", max_attempt=5)


def test_a_worker_takes_tasks_that_are_declared_later(tasks: Any) -> None:
    worker = AsyncWorker(NOWHERE)
    worker.tasks(tasks, concurrency=7, grace=5)

    @tasks.task(retry=Retry(attempts=3), deadline=9)
    def one() -> None: ...

    @tasks.task
    async def two() -> None: ...

    handler = worker.handlers["mail"]
    assert (handler.concurrency, handler.grace, list(handler.kinds)) == (7, 5, ["one", "two"])
    assert (handler.kinds["one"].retry.attempts, handler.kinds["one"].deadline) == (3, 9)


def test_a_coroutine_under_threads_is_refused_at_its_registration(tasks: Any) -> None:
    worker = Worker(NOWHERE)
    worker.tasks(tasks)
    with pytest.raises(
        ConfigurationError, match=r"one.* is async: register it with an AsyncWorker"
    ):

        @tasks.task
        async def one() -> None: ...

    tasks = AsyncTasks("mail", NOWHERE)
    tasks.task(name="two")(test_a_coroutine_under_threads_is_refused_at_its_registration)

    @tasks.task
    async def three() -> None: ...

    with pytest.raises(ConfigurationError, match="is async"):
        Worker(NOWHERE).tasks(tasks)


def test_what_a_worker_refuses() -> None:
    worker = Worker(NOWHERE)
    with pytest.raises(TypeError, match="tasks must be a Tasks"):
        worker.tasks(Queue("mail", url=NOWHERE))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="namespace"):
        worker.tasks(Tasks("mail", NOWHERE, namespace="other"))
    worker.tasks(Tasks("mail", NOWHERE))
    with pytest.raises(ConfigurationError, match="no handlers"):
        worker.start()
    one, two = Tasks("mail", NOWHERE), Tasks("mail", NOWHERE)
    for tasks in (one, two):
        tasks.task(name="same")(test_what_a_worker_refuses)
    worker.tasks(one)
    with pytest.raises(ConfigurationError, match="already of kind 'same'"):
        worker.tasks(two)


def test_no_task_runs_here(tasks: Any) -> None:
    with pytest.raises(LookupError, match="no task runs here"):
        _ = tasks.job
