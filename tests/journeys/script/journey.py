# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded]"]
# ///
"""A plain script with a queue and its worker at the top of a module. A failing handler is logged,
and its job is kept.
"""

from __future__ import annotations

import signal
from pathlib import Path

from headrace import JobFailed

from mail import emails
from programs import Program

assert not Path("data").exists(), "to import a queue touches no server"

with emails, Program("python", "mail.py") as worker:
    worker.says("INFO worker_started", "serves 'emails' with __main__.send")
    receipt = emails.enqueue("ada@example.org")

    # There is no outbox yet: the program says so by itself, and when it tries again.
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'outbox/ada@example.org'"
    worker.says(
        "WARNING job_failed",
        receipt.id,
        "'emails'",
        "attempt 1 of 2",
        "runs again in 0.1 s",
        missing,
    )
    worker.says("ERROR job_dead_lettered", receipt.id, "'emails'", "attempt 2 of 2", missing)
    assert 'in send\n    Path("outbox", job.payload.decode()).touch()' in worker.output, (
        "its traceback"
    )
    try:
        receipt.result(timeout=30)
    except JobFailed as error:
        assert missing in str(error), error
    else:
        raise AssertionError("a dead job has no result")

    # It is kept with its reason, and goes back when that is gone.
    (letter,) = emails.admin.dead()
    assert (letter.job.payload, letter.reason) == (b"ada@example.org", missing)
    Path("outbox").mkdir()
    assert emails.admin.redrive() == 1
    assert receipt.result(timeout=30) == b"250 OK"
    assert Path("outbox", "ada@example.org").exists()

    receipts = emails.enqueue_many([f"{n}@example.org" for n in range(1000)])
    assert emails.admin.drain(timeout=30)
    assert len(list(Path("outbox").iterdir())) == 1001
    counts = emails.counts()
    assert (counts.enqueued, counts.completed, counts.present, counts.lost) == (1001, 1001, 0, 0), (
        counts
    )
    assert "worker_stopped" in worker.stop(signal.SIGINT)
