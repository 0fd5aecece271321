"""`manage.py headrace_worker` and `manage.py headrace`, as programs of a project."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from headrace._django import contract
from tests.django import tasks
from tests.django.conftest import await_end
from tests.support.servers import Server

Make = Callable[..., Any]
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

execute_from_command_line(sys.argv)
"""


@pytest.fixture
def manage(backend: Make, database: None, newest: Server, tmp_path: Path) -> Callable[..., list[str]]:
    """Write a project with these options, on this test's database; return the command of its `manage.py`."""

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


@contextmanager
def running(command: list[str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A program, in another folder than its own; it is stopped at the end."""
    with subprocess.Popen(
        command, cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            yield program
        finally:
            program.terminate()
            _, said = program.communicate(timeout=30)
            assert program.returncode == 0, said


@pytest.mark.slow
def test_the_worker_runs_tasks_in_processes(manage: Any, tmp_path: Path) -> None:
    """One that dies is started again, and its task runs again; rows of an outbox are relayed."""
    command = [*manage(outbox=True), "headrace_worker", "--processes", "2"]
    died = tasks.kills.enqueue(str(tmp_path / "died"))
    results = [tasks.queries.using(queue_name="mail").enqueue(n) for n in range(5)]
    with running(command, Path("/")):
        assert max(await_end(result).return_value for result in results) == 5
        assert await_end(died).return_value == "survived"
        assert died.attempts == 2
        assert died.worker_ids[0] == "unknown"


@pytest.mark.slow
def test_a_burst_of_one_queue(manage: Any) -> None:
    command = manage()
    mail, other = tasks.note.using(queue_name="mail").enqueue(1), tasks.note.enqueue(2)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    burst = [*command, "headrace_worker", "--queue", "mail", "--burst"]
    done = subprocess.run(burst, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    mail.refresh()
    other.refresh()
    assert (mail.status, other.status) == (contract.FIRST.Status.SUCCESSFUL, contract.FIRST.Status.READY)
    stats = subprocess.run(
        [*command, "headrace", "stats", "mail", "--json"], env=environment, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert stats.returncode == 0, stats.stderr
    assert '"completed": 1' in stats.stdout
    unknown = subprocess.run(
        [*command, "headrace", "stats", "nowhere"], env=environment, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert unknown.returncode == 2
