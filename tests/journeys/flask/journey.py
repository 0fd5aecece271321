# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded]", "flask"]
# ///
"""A Flask service. Views enqueue, a worker runs the jobs, and a view waits for a result."""

from __future__ import annotations

import os

os.environ["HEADRACE_URL"] = "embedded:./data"

from jobs import emails, worker
from web import app

client = app.test_client()
asked = client.post("/users/ada@example.org/welcome")
assert (asked.status_code, asked.json) == (202, {"id": "welcome-ada@example.org", "added": True})
assert client.post("/users/ada@example.org/welcome").json["added"] is False
client.post("/users/nowhere/welcome")

with worker:
    answer = client.get("/jobs/welcome-ada@example.org/result")
    assert (answer.status_code, answer.json) == (200, {"result": "250 OK"}), answer.json
    answer = client.get("/jobs/welcome-nowhere/result")
    assert (answer.status_code, answer.json) == (502, {"error": "not an address"}), answer.json

counts = emails.counts()
assert (counts.completed, counts.dead, counts.lost) == (1, 1, 0), counts
emails.close()
