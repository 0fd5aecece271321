# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded,cli]"]
# ///
"""Tasks. One program calls functions and another runs them, or the clock does. There are hooks,
middleware and results.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path

from headrace import JobFailed

from mail import Person, remind, tasks, welcome
from programs import Program, until

os.environ["HEADRACE_URL"] = "embedded:./data"
ada = Person("Ada", "ada@example.org", date(2000, 12, 10))

with closing(sqlite3.connect("sent.db")) as sent, sent:
    sent.execute("CREATE TABLE sent (job TEXT PRIMARY KEY, line TEXT)")

# A wrong call is refused before anything is sent.
for wrong in (
    lambda: welcome.enqueue("ada"),
    lambda: welcome.enqueue(ada, topic="Hello"),
    lambda: remind.enqueue(to=b"ben"),
):
    try:
        wrong()
    except TypeError as error:
        assert "to" in str(error) or "topic" in str(error), error
    else:
        raise AssertionError("a wrong call was taken")
assert not Path("data").exists()

with tasks.queue, Program("headrace", "work", "mail:worker") as worker:
    receipt = welcome.enqueue(ada, subject="Good morning")
    assert receipt.result(timeout=30) == 30
    again = welcome.options(id="welcome-ada", delay=0.1).enqueue(ada)
    assert again.result(timeout=30) == 30
    failing = remind.enqueue("nowhere")
    worker.says(
        "job_failed", failing.id, "'mail'", "attempt 1 of 2", "ConnectionError: no way to nowhere"
    )
    worker.says("tracker: remind ConnectionError('no way to nowhere')")
    worker.says("job_dead_lettered", failing.id)
    try:
        failing.result(timeout=30)
    except JobFailed as error:
        assert error.reason == "ConnectionError: no way to nowhere", error
    else:
        raise AssertionError("a dead job has no result")
    tasks.enqueue_many(welcome.new(Person(f"{n}", "", date(2001, 1, 1))) for n in range(100))
    assert tasks.queue.admin.drain(timeout=30)
    until(lambda: tasks.queue.counts().completed >= 104, "what recurs has run twice")
    worker.stop()
    counts = tasks.queue.counts()
    assert (counts.dead, counts.lost) == (1, 0), counts
    assert [schedule.name for schedule in tasks.queue.admin.schedules()] == ["tasks/tidy"]

with closing(sqlite3.connect("sent.db")) as sent:
    lines = [line for (line,) in sent.execute("SELECT line FROM sent")]
assert lines.count("tidied") == counts.completed - 102 >= 2, (lines, counts)
welcomes = [line for line in lines if line != "tidied"]
assert welcomes[:2] == ["Good morning, Ada", "Welcome, Ada"], welcomes[:2]
assert len(welcomes) == 102, len(welcomes)
