# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded]", "litestar[standard]"]
# ///
"""A Litestar service. Requests enqueue, the worker in its process runs the jobs, and a request
waits for a result."""

from __future__ import annotations

import asyncio
import os

os.environ["HEADRACE_URL"] = "embedded:./data"

from headrace import Counts
from litestar.testing import TestClient

from mail import emails
from web import app

with TestClient(app) as client:
    asked = client.post("/users/ada@example.org/welcome")
    assert (asked.status_code, asked.json()["id"]) == (202, "welcome-ada@example.org"), asked.text
    answer = client.get("/jobs/welcome-ada@example.org/result")
    assert (answer.status_code, answer.json()) == (200, {"result": "250 OK"}), answer.text
    client.post("/users/nowhere/welcome")
    answer = client.get("/jobs/welcome-nowhere/result")
    assert (answer.status_code, answer.json()["detail"]) == (502, "not an address"), answer.text


async def counts() -> Counts:
    async with emails:
        return await emails.counts()


after = asyncio.run(counts())
assert (after.completed, after.dead, after.lost) == (1, 1, 0), after
