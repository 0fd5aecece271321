# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded,cli]", "fastapi", "uvicorn"]
# ///
"""A FastAPI service under uvicorn. Requests enqueue, and a worker in its process or beside it runs
the jobs."""

from __future__ import annotations

import asyncio
import os

from headrace import Counts

from mail import emails
from programs import Program, ask, until

os.environ["HEADRACE_URL"] = "embedded:./data"
UVICORN = ("uvicorn", "web:app", "--port", "0")


def address(web: Program) -> str:
    return "http" + web.says("Uvicorn running on http").partition("http")[2].partition(" ")[0]


async def counts() -> Counts:
    async with emails:
        return await emails.counts()


# The worker in the web server's process.
with Program(*UVICORN, WITH_WORKER="1") as web:
    url = address(web)
    accepted = {"id": "welcome-ada@example.org", "added": True}
    assert ask(f"{url}/welcome/ada@example.org", "POST") == (202, accepted)
    assert ask(f"{url}/jobs/welcome-ada@example.org/result") == (200, {"result": "250 OK"})
    assert ask(f"{url}/jobs/welcome-ada@example.org") == (200, {"state": "gone", "reason": None})

    # A handler that fails is heard in the web server's own output, though nothing has set up
    # logging.
    assert ask(f"{url}/welcome/nowhere", "POST")[0] == 202
    reason = "ValueError: not an address: b'nowhere'"
    web.says(
        "job_failed", "welcome-nowhere", "'emails'", "attempt 1 of 20", "runs again in", reason
    )
    put_off = (200, {"state": "delayed", "reason": reason})
    until(
        lambda: ask(f"{url}/jobs/welcome-nowhere") == put_off,
        "it is put off, which is settled after it is said",
    )

    # A stop lets the two that run finish, and gives the others back: they wait, with no attempt
    # spent.
    for n in range(6):
        assert ask(f"{url}/welcome/slow-{n}@example.org", "POST")[0] == 202
    until(
        lambda: ask(f"{url}/jobs/welcome-slow-0@example.org")[1]["state"] == "leased",
        "the first two run",
    )
    assert "Application shutdown complete" in web.stop()

after = asyncio.run(counts())
assert (after.leased, after.delayed, after.dead, after.lost) == (0, 1, 0, 0), after
given_back = after.waiting + after.parked
assert 0 < given_back < 6, after

# The worker as a process of its own, while the web server is started anew.
with Program("headrace", "work", "mail:worker") as worker, Program(*UVICORN) as web:
    worker.says("INFO worker_started", "serves 'emails' with mail.send, 2 at once")
    url = address(web)
    for n in range(6):
        status, answer = ask(f"{url}/jobs/welcome-slow-{n}@example.org/result")
        assert (status, answer) == (200, {"result": "250 OK"}), answer
    assert ask(f"{url}/welcome/ben@example.org", "POST")[0] == 202
    assert ask(f"{url}/jobs/welcome-ben@example.org/result") == (200, {"result": "250 OK"})
    assert "job_failed" not in web.output
    web.stop()
    assert "given back: nothing" in worker.stop()

after = asyncio.run(counts())
assert (after.enqueued, after.completed, after.delayed, after.lost) == (9, 8, 1, 0), after
