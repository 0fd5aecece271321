"""The command line for jobs with steps. It sends signals and shows the records of a run."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headrace import Queue
from headrace.codecs import JSONCodec
from headrace.errors import RunSuspended
from tests.support.program import Program, refused
from tests.support.servers import Server
from tests.support.steps import waiting_run


@pytest.mark.parametrize("codec", [None, JSONCodec()], ids=["bytes", "json"])
def test_signal(within: Program, newest: Server, codec: Any) -> None:
    """The data is JSON or else text, whatever the queue's codec. The exit code tells whether the
    signal was accepted.
    """
    with Queue("q", url=newest.url, **({} if codec is None else {"codec": codec})) as queue:
        waiting_run(queue, "w", b"x" if codec is None else 1)
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


def test_show(within: Program, newest: Server) -> None:
    """The records of a run are printed one a line, with its progress. JSON has all fields."""
    with Queue("q", url=newest.url) as queue:
        waiting_run(queue, "w")
        shown = [line.split("\t", 1) for line in within("show", "q", "w").stdout.splitlines()]
        assert ["state", "blocked"] in shown
        assert ["progress", "40% page 12 of 30"] in shown
        (waits,) = [text for name, text in shown if name == "waits for"]
        assert re.fullmatch(r"approved, since \S+Z, until \S+Z", waits)
        steps = [text for name, text in shown if name == "step"]
        moment = r"20\d\d-[\d:TZ-]+"
        assert re.fullmatch(
            rf'charge: done, attempt 1, {moment}, took \S+ s, \{{ "paid": 7 \}}', steps[0]
        ), steps[0]
        assert re.fullmatch(rf"approved: waiting, attempt 1, {moment}, due {moment}", steps[1]), (
            steps[1]
        )
        whole = json.loads(within("show", "q", "w", "--json").stdout)
        assert whole["progress"]["fraction"] == 0.4
        assert [(step["name"], step["state"]) for step in whole["steps"]] == [
            ("charge", "done"),
            ("approved", "waiting"),
        ]
        assert json.loads(whole["steps"][0]["result"]) == {"paid": 7}
        assert whole["steps"][1]["result"] is None
        assert within("signal", "q", "w", "approved", "yes").returncode == 0
        (sent,) = [
            line for line in within("show", "q", "w").stdout.splitlines() if "approved" in line
        ]
        assert re.search(rf"took \S+ s, sent {moment} by \S+@\S+, yes$", sent), sent


def test_a_failure_that_was_overcome_comes_last(within: Program, newest: Server) -> None:
    """A waiting run shows its signal, and its failure in the past. A retried job shows the
    reason."""
    with Queue("q", url=newest.url, tracebacks=True) as queue:
        queue.enqueue(b"x", id="w")
        lease = queue.lease()
        lease.job.step("charge", lambda: 1)
        assert lease.retry(reason="it was full")
        assert "reason\tit was full" in within("show", "q", "w").stdout
        with pytest.raises(RunSuspended):
            queue.lease().job.wait_for("go")
        shown = [line.split("\t", 1) for line in within("show", "q", "w").stdout.splitlines()]
        names = [name for name, _ in shown]
        assert ["failed before", "it was full"] in shown
        assert "reason" not in names
        assert names.index("failed before") > names.index("step")
        (row,) = within("list", "q", "--state", "blocked").stdout.splitlines()[1:]
        assert "it was full" not in row
        assert (
            json.loads(within("list", "q", "--state", "blocked", "--json").stdout)["reason"]
            == "it was full"
        )


def test_redrive_from_a_step(within: Program, newest: Server) -> None:
    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"x", id="w")
        lease = queue.lease()
        lease.job.step("charge", lambda: 7)
        lease.job.step("ship", lambda: 8)
        lease.dead_letter("no")
        refused(
            within("dead", "redrive", "q", "w", "--from-step", "pack"),
            "it has recorded 'charge', 'ship'",
        )
        refused(
            within("dead", "redrive", "q", "--from-step", "ship"),
            "--from-step: give the id of one job",
        )
        done = within("dead", "redrive", "q", "w", "--from-step", "ship")
        assert (done.stdout, done.returncode) == ("redriven 1\n", 0)
        assert [step.name for step in queue.find("w").steps] == ["charge"]
