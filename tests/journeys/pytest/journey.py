# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded,json]", "pytest"]
# ///
"""A project with tests. pytest finds the fixtures by itself, and a test fails with its handler's
own exception."""

from __future__ import annotations

import re

from programs import Program

with Program("pytest", "--fixtures") as pytest:
    said = pytest.ends()
    assert re.search(
        r"^headrace_run\b.*\n +Return a function that runs a worker", said, re.MULTILINE
    ), said

with Program("pytest", "-q") as pytest:
    said = pytest.ends(1)
    assert re.search(r"^1 failed, 5 passed in", said, re.MULTILINE), said
    assert "FAILED tests/test_mail.py::test_one_that_fails_for_its_handler - ValueError" in said
    # the handler's own line
    assert re.search(r"^mail\.py:\d+: ValueError$", said, re.MULTILINE), said
