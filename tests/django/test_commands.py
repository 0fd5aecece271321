"""`manage.py headrace_worker` and `manage.py headrace`, as programs of a project."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.django import _contract as contract
from tests.django import tasks
from tests.django.conftest import ROOT, await_end


def environ() -> dict[str, str]:
    """Return an environment in which programs import this checkout from any folder."""
    path = [str(ROOT), str(ROOT / "src")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


@contextmanager
def running(command: list[str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program in another folder than its own, and stop it at the end."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environ(),
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            yield program
        finally:
            program.terminate()
            _, said = program.communicate(timeout=30)
            assert program.returncode == 0, said


@pytest.mark.slow
def test_the_worker_runs_tasks_in_processes(manage: Any, tmp_path: Path) -> None:
    """A process that dies is replaced, and its task runs again. Rows of an outbox are relayed."""
    command = [*manage(outbox=True), "headrace_worker", "--processes", "2"]
    results = [tasks.queries.using(queue_name="mail").enqueue(n) for n in range(5)]
    with running(command, Path("/")):
        assert max(await_end(result).return_value for result in results) == 5
        died = tasks.kills.enqueue(str(tmp_path / "died"))  # alone: the others write a row once
        assert await_end(died).return_value == "survived"
        assert died.attempts == 2
        assert died.worker_ids[0] == "unknown"


@pytest.mark.slow
def test_a_burst_of_one_queue(manage: Any) -> None:
    command = manage()
    mail, other = tasks.note.using(queue_name="mail").enqueue(1), tasks.note.enqueue(2)
    environment = environ()
    burst = [*command, "headrace_worker", "--queue", "mail", "--burst"]
    done = subprocess.run(
        burst, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    mail.refresh()
    other.refresh()
    assert (mail.status, other.status) == (
        contract.FIRST.Status.SUCCESSFUL,
        contract.FIRST.Status.READY,
    )
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


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["Django's logging", "a LOGGING"])
def test_each_line_is_logged_once(manage: Any, tmp_path: Path, own: bool) -> None:
    """This also holds with DEBUG, with which Django writes the lines of its own loggers too."""
    command = manage()
    with (tmp_path / "own_settings.py").open("a") as settings:
        settings.write("DEBUG = True\n")
        if own:
            settings.write(LOGGING)
    tasks.says.enqueue("once and for all")
    done = subprocess.run(
        [*command, "headrace_worker", "--burst"], env=environ(), capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("once and for all") == 1, done.stderr


LOGGING = """
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"own": {"class": "logging.StreamHandler"}},
    "loggers": {"headrace": {"handlers": ["own"], "level": "INFO"}},
}
"""
