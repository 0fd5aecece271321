"""The command `manage.py headrace_relay`. It relays a backend's outboxes, and lists the rows that
were set aside."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from headrace.django import _contract as contract
from headrace.django.models import OutboxRow
from tests.django import tasks
from tests.django.conftest import ROOT, await_end, working
from tests.support.awaiting import until

Make = Callable[..., Any]


def ran(capsys: pytest.CaptureFixture[str], **options: Any) -> list[Any]:
    """Run the command and return the objects that it prints."""
    with suppress(SystemExit):
        call_command("headrace_relay", json=True, **options)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_rows_that_were_set_aside(
    backend: Make, database: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are listed for all queues or for one, and retried. The task's result has the reason
    meanwhile."""
    backend(outbox=True)
    results = [
        tasks.note.using(queue_name=name).enqueue(name) for name in ("default", "mail", "mail")
    ]
    OutboxRow.objects.update(headers="[1]")
    with working():
        until(lambda: not OutboxRow.objects.filter(refused=None).exists())
    listed = ran(capsys, refused=True)
    assert [(row["queue"], row["job_id"]) for row in listed] == [
        (name, result.id) for name, result in zip(("default", "mail", "mail"), results, strict=True)
    ]
    assert "JSON object" in listed[0]["reason"]
    assert [row["queue"] for row in ran(capsys, refused=True, queue=["mail"])] == ["mail", "mail"]
    OutboxRow.objects.update(headers=json.dumps({"kind": "tests.django.tasks.note"}))
    failed = tasks.note.get_result(results[0].id)
    assert failed.status == contract.FIRST.Status.FAILED
    assert "JSON object" in failed.errors[0].traceback
    assert ran(capsys, retry_refused=True, queue=["default"]) == [
        {"queue": "default", "retried": 1}
    ]
    assert ran(capsys, retry_refused=True) == [{"queue": "default, mail", "retried": 2}]
    with working():
        assert [await_end(result).return_value for result in results] == ["default", "mail", "mail"]
    assert ran(capsys, refused=True) == []
    with pytest.raises(SystemExit) as ended:
        call_command("headrace_relay", retry_refused=True)
    assert ended.value.code == 1


@pytest.mark.slow
def test_the_program_relays_all_queues(manage: Any) -> None:
    """The program runs until SIGTERM and runs no tasks."""
    command = [*manage(outbox=True), "headrace_relay"]
    results = [tasks.note.using(queue_name=name).enqueue(name) for name in ("default", "mail")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=Path("/"), env=environment, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            until(lambda: not OutboxRow.objects.exists(), "the relay")
        finally:
            program.terminate()
            _, said = program.communicate(timeout=30)
    assert program.returncode == 0, said
    assert "relays the outbox of queues default, mail" in said
    with working():
        assert [await_end(result).return_value for result in results] == ["default", "mail"]


@pytest.mark.parametrize(
    ("options", "given", "said"),
    [
        ({}, {}, r"TASKS\['default'\]\['OPTIONS'\] has no outbox"),
        (
            {"outbox": True},
            {"queue": ["mails"]},
            r"TASKS\['default'\]\['QUEUES'\] has no 'mails': it has default, mail",
        ),
        ({"outbox": True}, {"backend": "other"}, "The connection 'other' doesn't exist"),
    ],
)
def test_wrong_use(
    backend: Make, database: None, options: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    backend(**options)
    with pytest.raises(CommandError, match=said):
        call_command("headrace_relay", refused=True, stdout=io.StringIO(), **given)
