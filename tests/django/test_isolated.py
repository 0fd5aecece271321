"""`manage.py headrace_worker --isolate` runs tasks in child processes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.django import _contract as contract
from tests.django import tasks
from tests.django.conftest import await_end
from tests.django.test_commands import LOGGING, environ, running

FAILED = contract.FIRST.Status.FAILED


CODE = """
from headrace.django import worker
from headrace.isolation import Isolation
worker(isolate=Isolation(recycle_jobs=5)).run()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["headrace_worker", "--isolate", "--recycle-jobs", "5"], ["shell", "-c", CODE]],
    ids=["the command", "worker()"],
)
def test_tasks_run_in_child_processes(manage: Any, arguments: list[str]) -> None:
    """Each child makes connections to the database of its own, and is replaced after its tasks."""
    command = [*manage(concurrency=2), *arguments]
    results = [tasks.whereabouts.enqueue() for _ in range(20)]
    results += [tasks.whereabouts.using(queue_name="mail").enqueue() for _ in range(2)]
    with running(command, Path("/")) as program:
        found = [await_end(result).return_value for result in results]
    pids = {one["pid"] for one in found}
    assert program.pid not in pids
    assert len(pids) >= 4
    assert all(set(one["connected"]) == {one["pid"]} for one in found)
    assert all(result.attempts == 1 for result in results)


@pytest.mark.slow
def test_a_task_that_hangs_or_dies_fails_alone(manage: Any) -> None:
    options = {"concurrency": 1, "retry": {"attempts": 2, "wait": 0}, "deadline": 1.0}
    command = [*manage(**options), "headrace_worker", "--isolate"]
    hangs, dies, well = (tasks.misbehaves.enqueue(how) for how in ("hangs", "dies", "well"))
    with running(command, Path("/")):
        assert await_end(well).return_value == "well in attempt 1 of 1"
        assert await_end(dies).return_value == "dies in attempt 2 of 2"
        assert await_end(hangs).status == FAILED
    assert [one.exception_class_path for one in hangs.errors] == ["headrace.errors.Killed"] * 2
    assert "Killed: deadline of 1 s" in hangs.errors[0].traceback
    assert "Killed: exit status 3" in dies.errors[0].traceback


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["Django's logging", "a LOGGING"])
def test_a_child_s_lines_are_logged_once(manage: Any, tmp_path: Path, own: bool) -> None:
    command = manage()
    with (tmp_path / "own_settings.py").open("a") as settings:
        settings.write("DEBUG = True\n")
        if own:
            settings.write(LOGGING)
    tasks.says.enqueue("once and for all")
    done = subprocess.run(
        [*command, "headrace_worker", "--burst", "--isolate"],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("once and for all") == 1, done.stderr


@pytest.mark.slow
def test_a_task_learns_of_its_earlier_attempts(manage: Any, tmp_path: Path) -> None:
    """It has its own options, too."""
    command = [*manage(retry={"attempts": 3, "wait": 0}), "headrace_worker", "--isolate"]
    with (tmp_path / "own_settings.py").open("a") as settings:
        settings.write("INSTALLED_APPS = [*INSTALLED_APPS, 'tests.django']\n")
    seen, own = tasks.seen.enqueue(fails=1), tasks.persists.enqueue()
    with running(command, Path("/")):
        told = await_end(seen).return_value
        await_end(own)
    assert (told["attempt"], told["workers"]) == (2, 2)
    assert told["errors"] == ["builtins.LookupError"]
    assert [one.exception_class for one in own.errors] == [LookupError] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--recycle-jobs", "9"], "--recycle-jobs, --recycle-mb: for child processes: --isolate"),
        (["--isolate", "--recycle-mb", "5"], "recycle_mb=5.0: give at least 64 MiB"),
        (["--isolate", "--recycle-jobs", "0"], "recycle_jobs=0"),
    ],
)
def test_bad_options_are_refused(manage: Any, arguments: list[str], words: str) -> None:
    done = subprocess.run(
        [*manage(), "headrace_worker", *arguments],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert words in done.stderr
