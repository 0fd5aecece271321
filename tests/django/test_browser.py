"""The buttons of the pages in Django, pressed in a real Chromium, on `manage.py runserver`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User

from headrace.django._backend import backend_of
from tests.django import tasks
from tests.django.conftest import ROOT
from tests.web.chromium import chromium, needs_chromium

pytestmark = needs_chromium
ADDRESS = re.compile(r"at (http://\S+)/")


@contextmanager
def served(command: list[str]) -> Iterator[str]:
    """The address of `manage.py runserver`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    serve = [*command, "runserver", "127.0.0.1:0", "--noreload"]
    with subprocess.Popen(
        serve, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:
        assert program.stdout is not None
        try:
            yield next(found[1] for line in program.stdout if (found := ADDRESS.search(line)))
        finally:
            program.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/admin/headrace/queue/", "/queues/"])
def test_a_button_is_pressed(manage: Callable[..., list[str]], path: str) -> None:
    """CSRF protection is on. The button works in the admin and below a prefix."""
    command = manage()
    User.objects.create_superuser("ada", password="x")
    tasks.note.enqueue("shown")
    queue = backend_of("default").queue("default")
    with served(command) as root, chromium() as browser:
        page: Any = browser.new_page()
        page.goto(f"{root}/admin/login/?next={path}queue?name=default")
        page.fill("[name=username]", "ada")
        page.fill("[name=password]", "x")
        page.press("[name=password]", "Enter")
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("status").get_by_text("The queue is paused.").wait_for()
        assert queue.admin.paused()
        page.get_by_role("button", name="Resume").click()
        page.get_by_role("status").get_by_text("Jobs are handed out again.").wait_for()
        assert not queue.admin.paused()
