"""The command line writes runs to a file, and replays them with the code of a worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace import Queue
from tests.support.program import Program, refused
from tests.support.servers import Server
from tests.support.steps import waiting_run

CODE = """
from headrace import Worker

print("imported")
worker = Worker()

@worker.handler("q")
def handler(job):
    print("handled")
    job.step("{step}", print, "never")
    job.wait_for("approved")
"""


@pytest.fixture
def exported(within: Program, newest: Server, tmp_path: Path) -> Path:
    """Write the only run of a queue, which waits for its approval, to a file."""
    with Queue("q", url=newest.url) as queue:
        waiting_run(queue, "w", b"\xff")
        queue.enqueue(b"no run")
    lines = within("runs", "export", "q")
    assert (lines.returncode, lines.stderr) == (0, "")
    row = json.loads(lines.stdout)
    assert (row["id"], row["state"], row["payload_base64"]) == ("w", "blocked", "/w==")
    assert [one["name"] for one in row["records"]] == ["charge", "approved"]
    path = tmp_path / "runs.jsonl"
    path.write_text(lines.stdout, "utf-8")
    return path


def test_replay(within: Program, exported: Path, tmp_path: Path) -> None:
    """The exit code tells whether all runs would go on. What a handler prints is no result."""
    (tmp_path / "same.py").write_text(CODE.format(step="charge"), "utf-8")
    (tmp_path / "renamed.py").write_text(CODE.format(step="pay"), "utf-8")
    for module, options, out, code in (
        ("same", [], "", 0),
        ("renamed", [], "q w: 'charge': recorded, and no more in the code", 1),
        ("renamed", ["--removed", "charge"], "", 0),
    ):
        done = within("replay", f"{module}:worker", str(exported), *options)
        assert done.returncode == code, done
        assert done.stdout.startswith(out), done
        assert bool(done.stdout) == bool(out), done
        assert "handled" in done.stderr
        assert "never" not in done.stderr
    done = within("replay", "same:worker", str(exported), "--json")
    assert json.loads(done.stdout) == {
        "queue": "q",
        "id": "w",
        "end": "suspended",
        "at": "approved",
        "reason": "",
        "unused": [],
    }


def test_replay_of_what_can_not_be_read(within: Program, exported: Path, tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text(
        CODE.format(step="charge").replace("print(", "str("), "utf-8"
    )
    bad = tmp_path / "bad.jsonl"
    bad.write_text(exported.read_text("utf-8") + "{}\n", "utf-8")
    refused(within("replay", "quiet:worker", str(bad)), "bad.jsonl, line 2", '"format": 1')
    refused(within("replay", "quiet:worker", str(tmp_path / "none")), "none: ", "No such file")
    refused(within("replay", "quiet:nobody", str(exported)), "quiet:nobody", "has no 'nobody'")
    refused(within("replay", "quiet", str(exported)), "give MODULE:NAME")


def test_list(within: Program, newest: Server) -> None:
    with Queue("q", url=newest.url) as queue:
        waiting_run(queue, "w")
    done = within("runs", "q")
    head, row = (line.split("\t") for line in done.stdout.splitlines())
    assert head == ["id", "state", "at", "kind", "began", "due", "build", "waits_for"]
    assert row[:4] == ["w", "blocked", "approved", "wait"]
    (line,) = within("runs", "list", "q", "--state", "blocked", "--json").stdout.splitlines()
    assert json.loads(line)["at"] == "approved"
    for option in (["--state", "delayed"], ["--build", "b1"], ["--older-than", "1000"]):
        assert within("runs", "q", *option, "--json").stdout == ""
    refused(within("runs", "list", "other"), "other")
