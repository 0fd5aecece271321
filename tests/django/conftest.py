"""A Django project, set up once, with a backend on the newest server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django", minversion="5.2", reason="Django is not installed")
import django

with pytest.MonkeyPatch.context() as patch:  # not for the processes that other tests start
    patch.setenv("DJANGO_SETTINGS_MODULE", "tests.django.project")
    django.setup()

from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from headrace.django import _contract as contract, worker
from headrace.django._backend import close
from tests.support.awaiting import until
from tests.support.servers import Server

Make = Callable[..., Any]
BACKEND = "headrace.django.TaskBackend"
ROOT = Path(__file__).parents[2]
SETTINGS = """
from tests.django.project import *

DATABASES["default"]["NAME"] = {database!r}
TASKS = {{
    "default": {{"BACKEND": "headrace.django.TaskBackend", "QUEUES": ["default", "mail"], "OPTIONS": {options!r}}}
}}
"""
MANAGE = """
import os, sys

os.environ["DJANGO_SETTINGS_MODULE"] = "own_settings"
from django.core.management import execute_from_command_line

if __name__ == "__main__": execute_from_command_line(sys.argv)
"""


@pytest.fixture(scope="session")
def migrated() -> None:
    """The database of this process has its tables."""
    call_command("migrate", verbosity=0)


@pytest.fixture
def database(migrated: None) -> Iterator[None]:
    """The database, empty afterwards."""
    yield
    call_command("flush", verbosity=0, interactive=False)
    connections.close_all()


@pytest.fixture
def backend(newest: Server) -> Iterator[Callable[..., Any]]:
    """Set `TASKS` with options of the backend `default`, and return the backend."""
    with pytest.MonkeyPatch.context() as patch:
        contract.FIRST.signals()
        patch.delenv("HEADRACE_URL", raising=False)
        overrides: list[Any] = []

        def make(queues: Any = ("default", "mail"), **options: Any) -> Any:
            given = {"url": newest.url, **options}
            entry = {
                "BACKEND": BACKEND,
                "OPTIONS": {key: value for key, value in given.items() if value is not None},
            }
            overrides.append(override_settings(TASKS={"default": entry | {"QUEUES": list(queues)}}))
            overrides[-1].enable()
            return contract.task_backends()["default"]

        yield make
        for one in reversed(overrides):
            one.disable()
        close()


@pytest.fixture
def manage(
    backend: Make, database: None, newest: Server, tmp_path: Path
) -> Callable[..., list[str]]:
    """Write a project with these options on this test's database, and return the command of its
    `manage.py`."""

    def write(**options: Any) -> list[str]:
        made = backend(**options)
        assert made.settings.url == newest.url
        name = str(settings.DATABASES["default"]["NAME"])
        (tmp_path / "own_settings.py").write_text(
            SETTINGS.format(database=name, options={"url": newest.url, **options})
        )
        (tmp_path / "manage.py").write_text(MANAGE)
        return [sys.executable, str(tmp_path / "manage.py")]

    return write


@pytest.fixture
def finished() -> Callable[..., Any]:
    """Run a worker until results are finished, and return the first of them, refreshed."""

    def finish(*results: Any, **options: Any) -> Any:
        with working(**options):
            for result in results:
                await_end(result)
        return results[0]

    return finish


@contextmanager
def working(**options: Any) -> Iterator[None]:
    """Run a worker of the backend `default` in the background."""
    with worker(**options):
        yield


def await_end(result: Any) -> Any:
    def over() -> bool:
        result.refresh()
        return bool(result.is_finished)

    until(over, "the task to end")
    return result
