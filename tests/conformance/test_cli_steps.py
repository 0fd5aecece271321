"""The command line on jobs whose handlers take steps: signals, and the records of a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace import Queue
from headrace.codecs import JSONCodec
from headrace.errors import RunSuspended
from tests.support.program import Program
from tests.support.servers import Server


def waiting(queue: Queue[Any], id: str, payload: Any = b"x") -> None:
    """Enqueue a job that takes one step, and waits for the signal `approved`."""
    queue.enqueue(payload, id=id)
    job = queue.lease().job
    assert job.step("charge", lambda: {"paid": 7}) == {"paid": 7}
    with pytest.raises(RunSuspended):
        job.wait_for("approved")


@pytest.mark.parametrize("codec", [None, JSONCodec()], ids=["bytes", "json"])
def test_signal(within: Program, newest: Server, codec: Any) -> None:
    """The data is JSON, or else text, whatever the queue's codec is; the exit code tells whether it was taken."""
    with Queue("q", url=newest.url, **({} if codec is None else {"codec": codec})) as queue:
        waiting(queue, "w", b"x" if codec is None else 1)
        for words, printed, code in (
            ('w approved {"by":"ada"}', "woke", 0),
            ("w approved", "present", 1),
            ("w later yes", "kept", 0),
            ("w later no", "present", 1),
            ("nobody approved", "unknown", 1),
        ):
            done = within("signal", "q", *words.split())
            assert (done.stdout, done.returncode, done.stderr) == (f"{printed}\n", code, ""), words
        job = queue.lease().job
        assert job.wait_for("approved") == {"by": "ada"}
        assert job.wait_for("later") == "yes"
    done = within("signal", "q", "w", "last", "--json")
    assert json.loads(done.stdout) == {"queue": "q", "id": "w", "signal": "last", "outcome": "kept"}
