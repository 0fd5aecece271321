"""Wrong settings. Each is a clear error of `manage.py check`, of the first call, and of the
worker's command."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings

from headrace import Limit, Rate
from headrace.django import _contract as contract, worker
from headrace.errors import ConfigurationError
from tests.django import tasks
from tests.django.conftest import BACKEND
from tests.support.servers import Server

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority": 3}, "has an unknown 'priority': did you mean 'priorities'?"),
        ({"colour": 3}, "has an unknown 'colour': it takes url, namespace, retry"),
        ({"priorities": 11}, "priorities=11: give at least 1 and at most 10"),
        ({"priorities": "5"}, "priorities must be an int, not str"),
        ({"retry": 5}, "retry must be a mapping, such as {'attempts': 5}, not int"),
        ({"retry": {"tries": 5}}, "retry: 'tries' is unknown; it takes attempts and wait"),
        ({"retry": {"attempts": 0}}, "attempts=0: give at least 1"),
        ({"outbox": "yes"}, "outbox must be a bool, not str"),
        ({"concurrency": 0}, "concurrency=0: give at least 1"),
        ({"deadline": -1}, "deadline"),
        ({"result_ttl": 0}, "result_ttl"),
        ({"history": 0}, "history=0: give at least 1"),
        ({"url": "http://localhost"}, "http"),
        ({"url": None}, "HEADRACE_URL"),
        ({"namespace": "no name"}, "namespace"),
        ({"timeout": 0}, "timeout=0"),
        ({"schema": "a.b"}, "schema='a.b': give a name of letters, digits and _"),
        ({"poll": 0}, "poll=0"),
        ({"relay_database": 5}, "relay_database must be a str, not int"),
        ({"max_waiting": 0}, "max_waiting=0: give at least 1"),
        ({"fair": 3}, "fair must be the name of a header"),
        (
            {"rate": 10},
            "rate must be a mapping, such as {'limit': 10, 'per': 60}, or a list of them, not int",
        ),
        (
            {"rate": {"limits": 10}},
            "rate: 'limits' is unknown; it takes limit, per, key, burst, per_shard",
        ),
        ({"limits": [{"limit": 0}]}, "limit=0: give at least 1"),
        ({"limits": {"key": "customer"}}, "limit"),
        (
            {"schedules": ["x"]},
            "schedules must map paths of tasks to {'cron': '0 3 * * *'}, not list",
        ),
        (
            {"schedules": {"a.b": "0 3 * * *"}},
            "takes a mapping of every or cron, tz and missed, not str",
        ),
        (
            {"schedules": {"a.b": {"each": 3}}},
            "takes a mapping of every or cron, tz and missed, not ['each']",
        ),
        ({"schedules": {"a.b": {}}}, "schedules: 'a.b': give every= or cron="),
        ({"schedules": {"a.b": {"cron": "* *"}}}, "schedules: 'a.b': cron '* *'"),
    ],
    ids=str,
)
def test_wrong_options(backend: Make, options: dict[str, Any], said: str) -> None:
    made = backend(**options)
    (problem,) = made.check()
    assert problem.id == "headrace.E001"
    assert said in problem.msg
    assert "TASKS['default']" in problem.msg
    with pytest.raises((ConfigurationError, ValueError)):
        tasks.note.enqueue(1)
    with pytest.raises((ConfigurationError, ValueError)):
        worker()


def test_options_are_a_dict(newest: Server) -> None:
    wrong = {"default": {"BACKEND": BACKEND, "OPTIONS": [1]}}
    said = r"TASKS\['default'\]\['OPTIONS'\] must be a dict, not list"
    with override_settings(TASKS=wrong), pytest.raises(ConfigurationError, match=said):
        tasks.note.enqueue(1)


def test_right_settings_pass(backend: Make, database: None) -> None:
    assert [*backend(outbox=True, retry={"attempts": 5, "wait": 1.5}, deadline=30).check()] == []
    call_command("check", databases=["default"], fail_level="WARNING", stdout=io.StringIO())


def test_options_of_queues(backend: Make) -> None:
    """A mapping and an object mean the same. A list means several of them."""
    plain = {"limit": 10, "per": 60, "key": "kind"}
    made = backend(
        rate=plain,
        limits=[{"limit": 2, "key": "customer"}, Limit(9)],
        fair="customer",
        max_waiting=100,
    )
    assert [*made.check()] == []
    settings = made.queue("mail").ops.settings
    assert settings.rates == (Rate(10, per=60, key="kind"),)
    assert settings.limits == (Limit(9), Limit(2, key="customer"))
    assert (settings.fair, settings.max_waiting, settings.timeout) == ("customer", 100, 5.0)
    assert made.settings.told_apart == ("customer",)


def aliases(
    newest: Server, first: dict[str, Any], second: dict[str, Any], queues: Any = ("b",)
) -> list[Any]:
    """Return the errors of two aliases that have the queues a and b and these options."""
    entries = {
        name: {"BACKEND": BACKEND, "QUEUES": list(its), "OPTIONS": {"url": newest.url, **options}}
        for name, its, options in (("default", ("a", "b"), first), ("other", queues, second))
    }
    with override_settings(TASKS=entries):
        return [problem for one in contract.task_backends().all() for problem in one.check()]


@pytest.mark.parametrize(
    ("first", "second", "queues", "said"),
    [
        ({"retry": {"attempts": 3}}, {}, ("b", "c"), "share queue 'b', and differ in retry"),
        (
            {"rate": {"limit": 5}, "timeout": 2},
            {},
            ("a", "b"),
            "'a', queue 'b', and differ in timeout, rate",
        ),
        (
            {"outbox": False},
            {"on_commit": False},
            (),
            "all queues, as an empty QUEUES allows any, and differ in on",
        ),
        ({}, {}, ("b",), None),
        (
            {"retry": {"attempts": 3, "wait": 5}},
            {"retry": {"attempts": 3, "wait": 5}},
            ("b",),
            None,
        ),
        ({"retry": {"attempts": 3}}, {}, ("c",), None),
        ({"retry": {"attempts": 3}}, {"namespace": "other"}, ("b",), None),
        ({"retry": {"attempts": 3}}, {"url": "redis://elsewhere"}, ("b",), None),
    ],
)
def test_aliases_that_share_a_queue(
    newest: Server, first: dict[str, Any], second: dict[str, Any], queues: Any, said: str | None
) -> None:
    """A worker of either runs the tasks of both, by its own options."""
    problems = aliases(newest, first, second, queues)
    if said is None:
        assert problems == []
    else:
        (problem,) = problems
        assert problem.id == "headrace.E007"
        assert "TASKS['other'] and TASKS['default']" in problem.msg
        assert said in problem.msg


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("tests.django.tasks.gone", "gone"),
        ("os.getcwd", "'os.getcwd' is no task"),
        ("tests.django.tasks.bills", "missing a required argument: 'customer'"),
    ],
)
def test_a_schedule_of_no_task(backend: Make, path: str, said: str) -> None:
    (problem,) = backend(schedules={path: {"every": 60}}).check()
    assert problem.id == "headrace.E008"
    assert said in problem.msg
    with pytest.raises(ConfigurationError, match="schedules"):
        worker()


def test_a_task_with_wrong_options_of_its_own() -> None:
    for wrong, said in (({"retry": 5}, "retry must be a mapping"), ({"deadline": -1}, "deadline")):
        with pytest.raises((TypeError, ValueError), match=said):
            tasks.task(**wrong)(tasks.answer.func)


def test_a_queue_needs_a_name(backend: Make) -> None:
    (problem,) = backend(["no name", "right"]).check()
    assert (problem.id, "'no name'" in problem.msg) == ("headrace.E002", True)


def test_a_database_that_is_none(backend: Make) -> None:
    for name in ("database", "relay_database"):
        (problem,) = backend(**{name: "other"}).check()
        assert (problem.id, problem.hint) == ("headrace.E003", "Name one of DATABASES.")


def test_a_schema_is_of_postgresql(backend: Make) -> None:
    (problem,) = backend(outbox=True, schema="queues").check()
    assert (problem.id, problem.hint) == ("headrace.E009", "Leave out 'schema'.")


def test_an_outbox_needs_the_app(backend: Make) -> None:
    with override_settings(INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"]):
        (problem,) = backend(outbox=True).check()
    assert (problem.id, "INSTALLED_APPS" in problem.hint) == ("headrace.E005", True)


def test_an_outbox_without_its_table(backend: Make, database: None) -> None:
    """The transaction fails, so no task is enqueued or lost."""
    backend(outbox=True)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE headrace_outbox RENAME TO away")
    try:
        output = io.StringIO()
        call_command("check", databases=["default"], stderr=output)
        assert "headrace.W001" in output.getvalue()
        assert "manage.py migrate headrace" in output.getvalue()
        forget_tables()
        said = "this database has no table headrace_outbox"
        with pytest.raises(ConfigurationError, match=said), transaction.atomic():
            tasks.note.enqueue(1)
        with pytest.raises(CommandError, match=said):
            call_command("headrace_worker")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE away RENAME TO headrace_outbox")


def forget_tables() -> None:
    """Let the next call look for its table again."""
    from headrace.sql import _tables as tables

    tables._FOUND.clear()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backend": "other"}, "The connection 'other' doesn't exist"),
        (
            {"queue": ["mails"]},
            r"TASKS\['default'\]\['QUEUES'\] has no 'mails': it has default, mail",
        ),
        ({"processes": 0}, "--processes: give 1 or more"),
        ({"concurrency": -1}, "concurrency=-1"),
        ({"concurrency": 0}, "concurrency=0: give at least 1"),
    ],
    ids=str,
)
def test_wrong_arguments_of_the_worker(backend: Make, given: dict[str, Any], said: str) -> None:
    backend()
    with pytest.raises(CommandError, match=said):
        call_command("headrace_worker", **given)


def test_another_backend_has_no_worker(newest: Server) -> None:
    other = {"default": {"BACKEND": f"{contract.FIRST.package}.backends.dummy.DummyBackend"}}
    said = r"give the alias of a headrace\.django\.TaskBackend"
    with override_settings(TASKS=other), pytest.raises(CommandError, match=said):
        call_command("headrace_worker")


def test_no_queue_to_work_on(backend: Make) -> None:
    backend([])
    with pytest.raises(CommandError, match="name some with --queue"):
        call_command("headrace_worker")


def test_no_migration_is_missing(database: None) -> None:
    call_command("makemigrations", "--check", "--dry-run", "headrace", stdout=io.StringIO())
