"""Registering handlers. An error is reported at once, before any call to a server."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from copy import copy
from datetime import timedelta
from functools import partial, wraps
from typing import Any

import pytest
import redis
import redis.asyncio

from headrace import AsyncWorker, ConfigurationError, Flow, Job, Queue, Retry, Tasks, Worker
from headrace._core.worker.variants import KindConsumer, PersistentConsumer
from headrace._engine.hooks import is_async
from headrace._model.codec import BytesCodec
from headrace.codecs import JSONCodec
from tests.support.facts import each

KINDS = [Worker, AsyncWorker]
URL = "redis://127.0.0.1:1"


def plain(job: Job) -> None: ...


async def coroutine(job: Job) -> None: ...


class Awaited:
    async def __call__(self, job: Job) -> None: ...


class Methods:
    def plain(self, job: Job) -> None: ...

    async def coroutine(self, job: Job) -> None: ...


@pytest.fixture(params=KINDS)
def worker(request: pytest.FixtureRequest) -> Any:
    """Return a worker of either colour without a connection."""
    return request.param(url=URL)


@each("function", [plain, Methods().plain, partial(plain), print, str])
def test_any_callable_will_do(worker: Any, function: Callable[..., Any]) -> None:
    worker = type(worker)(url=URL)
    assert worker.handler("a")(function) is function
    assert worker.batch_handler("b")(function) is function
    assert [handler.function for handler in worker.handlers.values()] == [function] * 2


def generator(job: Job) -> Iterator[bytes]:
    yield job.payload


async def async_generator(job: Job) -> AsyncIterator[bytes]:
    yield job.payload


class Generates:
    def __call__(self, job: Job) -> Iterator[bytes]:
        yield job.payload


@each(
    "function",
    [
        generator,
        async_generator,
        Generates(),
        Generates().__call__,
        partial(generator),
        partial(Generates()),
    ],
)
def test_generator_functions_are_refused_wherever_they_are_registered(
    worker: Any, function: Any
) -> None:
    for register in (worker.handler("q"), worker.batch_handler("q"), Flow("f", url=URL).stage("s")):
        with pytest.raises(
            ConfigurationError, match="is a generator function: calling it runs nothing"
        ):
            register(function)
    with pytest.raises(ConfigurationError, match="is a generator function"):
        Tasks("q", url=URL).task(name="t")(function)
    assert not worker.handlers


def takes_none() -> None: ...


def takes_two(job: Job, database: object) -> None: ...


def takes_more_by_name(job: Job, *, database: object) -> None: ...


async def awaits_none() -> None: ...


@wraps(takes_two)
def given_the_other(job: Job) -> None: ...


@each(
    ("function", "says"),
    [
        (takes_none, "takes_none is called with a .* alone: too many positional arguments"),
        (
            takes_two,
            "takes_two is called with .*: missing a required argument: 'database'. .* functools.partial",
        ),
        (takes_more_by_name, "missing a required (keyword-only )?argument: 'database'"),
        (partial(takes_none), "takes_none is called with"),
        (Methods.plain, "missing a required argument: 'job'"),
    ],
)
def test_a_handler_that_can_not_take_a_job_is_refused(
    worker: Any, function: Any, says: str
) -> None:
    for register in (worker.handler("q"), worker.batch_handler("q"), Flow("f", url=URL).stage("s")):
        with pytest.raises(ConfigurationError, match=says):
            register(function)
    assert not worker.handlers


def test_what_a_worker_calls_takes_its_arguments() -> None:
    worker = AsyncWorker(url=URL)
    with pytest.raises(
        ConfigurationError, match="is called with a list of jobs alone: too many positional"
    ):
        worker.batch_handler("q")(awaits_none)
    with pytest.raises(
        ConfigurationError, match="is called with a job and the call inside: too many positional"
    ):
        worker.middleware(coroutine)
    for hook in (worker.on_start, worker.on_stop):
        with pytest.raises(
            ConfigurationError,
            match="is called with no arguments: missing a required argument: 'job'",
        ):
            hook(coroutine)


def test_parameters_that_need_no_value_are_left_alone(worker: Any) -> None:
    def defaults(job: Job, database: object = None, *more: object, **others: object) -> None: ...

    for name, function in {
        "a": defaults,
        "b": partial(takes_two, database=1),
        "c": given_the_other,
    }.items():
        assert worker.handler(name)(function) is function
    assert list(worker.handlers) == ["a", "b", "c"]


def test_a_misspelt_argument_is_named_with_the_one_that_is_meant(worker: Any) -> None:
    for register, wrong, right in (
        (worker.handler, "concurency", "concurrency"),
        (worker.handler, "persistant", "persistent"),
        (worker.handler, "max_attempt", "max_attempts"),
        (worker.batch_handler, "max_sise", "max_size"),
        (partial(Queue, url=URL), "codek", "codec"),
        (Queue("q", url=URL).enqueue, "countdown", "delay"),
        (Queue("q", url=URL).enqueue, "job_id", "id"),
    ):
        with pytest.raises(
            TypeError, match=rf"\(\) got an unexpected .* '{wrong}', did you mean '{right}'\?$"
        ):
            register("q", **{wrong: 3})


def test_its_description_tells_name_state_and_queues(worker: Any) -> None:
    kind = type(worker).__name__
    assert repr(worker) == f"<{kind} {worker.name!r}, not started: no handlers>"
    worker.handler("mail", concurrency=3)(plain)
    worker.handler("sms")(plain)
    slots = {"Worker": 10, "AsyncWorker": 100}[kind]
    assert (
        repr(worker)
        == f"<{kind} {worker.name!r}, not started: 'mail' (3 at once), 'sms' ({slots} at once)>"
    )


def test_what_has_connections_is_not_pickled(worker: Any) -> None:
    for one, name in (
        (worker, type(worker).__name__),
        (Queue("q", url=URL), "Queue"),
        (Flow("f", url=URL), "Flow"),
    ):
        for take in (pickle.dumps, copy):
            with pytest.raises(
                TypeError,
                match=f"a {name} is neither pickled nor copied: make one .* in each process",
            ):
                take(one)


@each(
    "function", [coroutine, Methods().coroutine, partial(coroutine), Awaited(), partial(Awaited())]
)
def test_async_handlers_are_for_async_workers(function: Callable[..., Any]) -> None:
    assert is_async(function)
    AsyncWorker(url=URL).handler("q")(function)
    for register in ("handler", "batch_handler"):
        with pytest.raises(ConfigurationError, match="is async: register it with an AsyncWorker"):
            getattr(Worker(url=URL), register)("q")(function)


@each(
    ("queue", "options", "error", "says"),
    [
        ("a b", {}, ConfigurationError, "queue name"),
        (5, {}, TypeError, "takes a queue, or its name, not int"),
        ("q", {"concurrency": 0}, ValueError, "concurrency=0"),
        ("q", {"concurrency": -1}, ValueError, "concurrency=-1"),
        ("q", {"concurrency": "10"}, TypeError, "concurrency must be an int"),
        ("q", {"concurrency": True}, TypeError, "concurrency must be an int"),
        ("q", {"concurrency": 1_000_000}, ValueError, "concurrency=1000000"),
        ("q", {"retry": 5}, TypeError, r"retry must be a Retry"),
        ("q", {"retry": 0}, TypeError, r"retry must be a Retry"),
        ("q", {"deadline": 0}, ValueError, "deadline=0"),
        ("q", {"deadline": "1"}, TypeError, "deadline must be seconds"),
        ("q", {"lease": -1}, ValueError, "lease=-1"),
        ("q", {"max_attempts": 0}, ValueError, "max_attempts=0"),
        ("q", {"dead_limit": -1}, ValueError, "dead_limit=-1"),
        ("q", {"fenced": "yes"}, TypeError, "fenced must be a bool"),
    ],
)
@each("register", ["handler", "batch_handler"])
def test_bad_arguments_are_refused(
    worker: Any,
    register: str,
    queue: Any,
    options: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    with pytest.raises(error, match=says):
        getattr(worker, register)(queue, **options)(plain)
    assert worker.handlers == {}


@each(
    ("register", "options", "error", "says"),
    [
        ("handler", {"result_ttl": 0}, ValueError, "result_ttl=0"),
        ("handler", {"max_size": 5}, TypeError, "max_size"),
        ("handler", {"kind": 5}, TypeError, "kind must be a str"),
        ("handler", {"kind": ""}, ValueError, "kind=''"),
        ("handler", {"kind": "a", "grace": -1}, ValueError, "grace=-1"),
        ("handler", {"grace": 5}, ConfigurationError, "grace: for jobs of unknown kinds"),
        ("handler", {"persistent": 1}, TypeError, "persistent must be a bool"),
        ("handler", {"persistent": True, "deadline": 5}, ConfigurationError, "give no deadline"),
        (
            "handler",
            {"persistent": True, "max_attempts": 5},
            ConfigurationError,
            "give no max_attempts",
        ),
        (
            "handler",
            {"persistent": True, "retry": Retry(attempts=5)},
            ConfigurationError,
            "give no attempts of its Retry",
        ),
        ("handler", {"persistent": True, "kind": "a"}, ConfigurationError, "takes all of its jobs"),
        ("batch_handler", {"kind": "a"}, TypeError, "kind"),
        ("batch_handler", {"max_size": 0}, ValueError, "max_size=0"),
        ("batch_handler", {"max_size": 1.5}, TypeError, "max_size must be an int"),
        ("batch_handler", {"max_wait": -1}, ValueError, "max_wait=-1"),
        ("batch_handler", {"max_wait": None}, TypeError, "max_wait must be seconds"),
        ("batch_handler", {"result_ttl": 5}, TypeError, "result_ttl"),
    ],
)
def test_bad_arguments_of_one_of_them(
    worker: Any, register: str, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        getattr(worker, register)("q", **options)(plain)


def test_what_can_not_be_called_is_no_handler(worker: Any) -> None:
    with pytest.raises(TypeError, match="a handler must be callable, 5 is not"):
        worker.handler("q")(5)


def test_a_queue_has_one_handler(worker: Any) -> None:
    worker.handler("q")(plain)
    for register in (worker.handler, worker.batch_handler):
        with pytest.raises(ConfigurationError, match="queue 'q' has a handler already"):
            register("q")(plain)
    worker.handler("r")(plain)
    assert list(worker.handlers) == ["q", "r"]


def test_settings_reach_the_handler(worker: Any) -> None:
    codec, retry = JSONCodec(), Retry(attempts=3)
    options = {
        "concurrency": 7,
        "retry": retry,
        "deadline": timedelta(minutes=1),
        "lease": 5,
        "max_attempts": 4,
    }
    worker.handler(
        "a", codec=codec, dead_limit=9, result_ttl=timedelta(hours=1), fenced=True, **options
    )(plain)
    worker.batch_handler("b", max_size=8, max_wait=timedelta(seconds=2), **options)(plain)
    one, batch = worker.handlers.values()
    for handler in (one, batch):
        assert (handler.concurrency, handler.retry, handler.deadline) == (7, retry, 60.0)
        assert (handler.queue_settings.lease, handler.queue_settings.max_attempts) == (5.0, 4)
    assert (one.queue, one.codec, one.batch, one.max_size) == ("a", codec, False, 1)
    assert (
        one.queue_settings.dead_limit,
        one.queue_settings.result_ttl,
        one.queue_settings.fenced,
    ) == (
        9,
        3600.0,
        True,
    )
    assert (batch.queue, batch.batch, batch.max_size, batch.max_wait) == ("b", True, 8, 2.0)
    assert isinstance(batch.codec, BytesCodec)


@each(("kind", "slots"), [(Worker, 10), (AsyncWorker, 100)])
def test_defaults(kind: Any, slots: int) -> None:
    worker = kind(url=URL)
    worker.handler("a")(plain)
    worker.batch_handler("b")(plain)
    one, batch = worker.handlers.values()
    assert (one.concurrency, one.retry, one.deadline) == (slots, Retry(), None)
    assert (batch.concurrency, batch.max_size, batch.max_wait) == (1, 1000, 0.05)


@each("kind", KINDS)
@each(
    ("options", "error", "says"),
    [
        ({"url": 5}, TypeError, "url must be a str"),
        ({"url": "http://localhost"}, ConfigurationError, "give redis://"),
        (
            {"client": 5},
            TypeError,
            r"client must be a redis\..*Redis for .*Worker, not builtins\.int",
        ),
        ({"name": "a b"}, ValueError, "worker name 'a b'"),
        ({"name": "parked"}, ValueError, "reserved"),
        ({"name": 5}, TypeError, "name must be a str"),
        ({"namespace": "a:b"}, ConfigurationError, "namespace"),
        ({"heartbeat": 0}, ValueError, "heartbeat=0"),
        ({"heartbeat": 9}, ValueError, "at least twice the heartbeat"),
        ({"timeout": "10"}, TypeError, "timeout must be seconds"),
        ({"urll": URL}, TypeError, "urll"),
    ],
)
def test_bad_arguments_of_a_worker(
    kind: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    given = options if options.keys() & {"url", "client"} else {"url": URL} | options
    with pytest.raises(error, match=says):
        kind(**given)


def test_a_client_is_of_the_worker_s_colour() -> None:
    sync, twin = redis.Redis(), redis.asyncio.Redis()
    assert (Worker(client=sync).handlers, AsyncWorker(client=twin).handlers) == ({}, {})
    with pytest.raises(TypeError, match=r"redis\.client\.Redis for Worker, not redis\.asyncio"):
        Worker(client=twin)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"redis\.asyncio\.client\.Redis for AsyncWorker, not redis\.client"
    ):
        AsyncWorker(client=sync)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give url= or client=, not both"):
        Worker(url=URL, client=sync)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_url_the_environment_counts(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADRACE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    made = kind()
    with pytest.raises(ConfigurationError, match="HEADRACE_URL or REDIS_URL"):
        made._address.join()
    monkeypatch.setenv("REDIS_URL", URL)
    assert made._address.join() == URL


@each("kind", [Worker, AsyncWorker])
def test_whose_child_a_span_is(kind: Any) -> None:
    assert kind(url=URL).trace_parent == "poll"
    with pytest.raises(ValueError, match="trace_parent='link': give 'poll' or 'message'"):
        kind(url=URL, trace_parent="link")


def test_a_worker_without_handlers_does_not_start() -> None:
    with pytest.raises(ConfigurationError, match="no handlers"):
        Worker(url=URL).run()
    with pytest.raises(ConfigurationError, match="no handlers"):
        Worker(url=URL).__enter__()
    with pytest.raises(ConfigurationError, match="no handlers"):
        AsyncWorker(url=URL).run()

    async def entered() -> None:
        async with AsyncWorker(url=URL):
            raise AssertionError

    with pytest.raises(ConfigurationError, match="no handlers"):
        asyncio.run(entered())


def test_stopping_what_never_ran_is_harmless() -> None:
    Worker(url=URL).stop()
    asyncio.run(AsyncWorker(url=URL).stop())


def test_names_are_given_or_drawn() -> None:
    assert Worker(url=URL, name="mine").name == "mine"
    assert len({Worker(url=URL).name for _ in range(5)}) == 5


def test_every_feed_has_a_name_of_its_own(worker: Any) -> None:
    """Each start makes new names. A feed never inherits the registration of a predecessor."""
    worker.handler("a")(plain)
    worker.handler("b")(plain)
    names = [
        consumer.name
        for _ in range(2)
        for consumer in worker._lifecycle([*worker.handlers.values()]).consumers
    ]
    assert len(set(names)) == 4
    assert all(name.startswith(f"{worker.name}.") for name in names)


def test_both_registers_take_what_a_queue_takes() -> None:
    """Options of a queue have the same names and defaults wherever they are given."""
    of_queue = inspect.signature(Queue).parameters
    for register in (Worker.handler, Worker.batch_handler):
        taken = inspect.signature(register).parameters
        for name in ("lease", "max_attempts", "codec", "dead_limit", "fenced"):
            assert taken[name].default == of_queue[name].default, name
    assert (
        inspect.signature(Worker.handler).parameters["result_ttl"].default
        == of_queue["result_ttl"].default
    )


# -- several handlers of one queue -----------------------------------------------------------------


def test_a_handler_for_each_kind(worker: Any) -> None:
    """Each handler has its own function, retry and deadline. A handler of any kind also gets the
    queue's settings."""
    retry, codec = Retry(attempts=3), JSONCodec()
    one = worker.handler("q", kind="a", deadline=9, concurrency=7, lease=5)(plain)
    two = worker.handler("q", kind="b", deadline=4, retry=retry, codec=codec, grace=60)(print)
    rest = worker.handler("q", lease=5, max_attempts=4)(len)
    (common,) = worker.handlers.values()
    assert {kind: handler.function for kind, handler in common.kinds.items()} == {
        "a": one,
        "b": two,
        None: rest,
    }
    assert [handler.deadline for handler in common.kinds.values()] == [9.0, 4.0, None]
    assert [handler.retry for handler in common.kinds.values()] == [Retry(), retry, Retry()]
    assert (common.concurrency, common.codec, common.grace, common.deadline) == (
        7,
        codec,
        60.0,
        4.0,
    )
    assert (common.queue_settings.lease, common.queue_settings.max_attempts) == (5.0, 4)
    (consumer,) = worker._lifecycle([*worker.handlers.values()]).consumers
    assert isinstance(consumer, KindConsumer)


def test_one_function_for_several_kinds(worker: Any) -> None:
    worker.handler("q", kind="b")(worker.handler("q", kind="a")(plain))
    assert set(worker.handlers["q"].kinds) == {"a", "b"}


def test_who_takes_a_job(worker: Any) -> None:
    worker.handler("q", kind="a")(plain)
    worker.handler("q", kind="b")(print)

    def takers() -> list[Any]:
        headers: list[dict[str, str]] = [
            {"kind": "a"},
            {"kind": "b", "x": "y"},
            {"kind": "c"},
            {"kind": ""},
            {},
        ]
        taken = [worker.handlers["q"].takes(Job("1-0", b"", "q", given)) for given in headers]
        return [handler and handler.function for handler in taken]

    assert takers() == [plain, print, None, None, None]
    worker.handler("q")(len)
    assert takers() == [plain, print, len, len, len]


@each(
    ("first", "second", "says"),
    [
        ({"kind": "a"}, {"kind": "a"}, "has a handler already of kind 'a'"),
        ({}, {}, "queue 'q' has a handler already"),
        (
            {"kind": "a", "lease": 5},
            {"kind": "b", "lease": 6},
            r"queue 'q': lease=5.0 and lease=6.0",
        ),
        ({"kind": "a", "concurrency": 5}, {"concurrency": 6}, "concurrency=5 and concurrency=6"),
        ({"kind": "a", "grace": 5}, {"kind": "b", "grace": 6}, "grace=5.0 and grace=6.0"),
        ({"kind": "a", "codec": JSONCodec()}, {"kind": "b", "codec": JSONCodec()}, "codec="),
        ({"persistent": True}, {"kind": "a"}, "takes all of its jobs"),
        ({"kind": "a"}, {"persistent": True}, "takes all of its jobs"),
    ],
)
def test_what_does_not_go_together(
    worker: Any, first: dict[str, Any], second: dict[str, Any], says: str
) -> None:
    worker = type(worker)(url=URL)
    worker.handler("q", **first)(plain)
    before = dict(worker.handlers)
    with pytest.raises(ConfigurationError, match=says):
        worker.handler("q", **second)(plain)
    assert worker.handlers == before


def test_batches_and_kinds_do_not_go_together(worker: Any) -> None:
    worker.handler("q", kind="a")(plain)
    with pytest.raises(ConfigurationError, match="queue 'q' has a handler already"):
        worker.batch_handler("q")(plain)
    worker.batch_handler("r")(plain)
    with pytest.raises(
        ConfigurationError, match="queue 'r': a batch handler, or a persistent one, takes all"
    ):
        worker.handler("r", kind="a")(plain)


def test_a_persistent_handler(worker: Any) -> None:
    worker.handler("q", persistent=True, retry=Retry(wait=5))(plain)
    (consumer,) = worker._lifecycle([*worker.handlers.values()]).consumers
    assert isinstance(consumer, PersistentConsumer)
