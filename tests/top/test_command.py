"""The command `headrace top`. It runs on a terminal, without one, without its extra, and once."""

from __future__ import annotations

import json
import sys

import pytest
from attrs import asdict

from headrace import Queue
from headrace._installing import install_command
from headrace.console.cli.app import app
from tests.support.program import on_a_terminal
from tests.support.servers import Server

PATIENCE = 60.0


def once(url: str, *arguments: str, capfd: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    """Run `headrace top` in this process and return its exit code and output."""
    with pytest.raises(SystemExit) as ended:
        app(["top", *arguments, "--url", url], prog_name="headrace")
    return ended.value.code, *capfd.readouterr()


def test_once(
    newest: Server, queue: Queue, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts and the rates of every queue, without textual."""
    monkeypatch.setitem(sys.modules, "textual", None)
    queue.enqueue_many([b"x"] * 3)
    code, out, err = once(newest.url, "--once", "--json", capfd=capfd)
    assert (code, err) == (0, "")
    row = json.loads(out)["emails"]
    assert {name: row[name] for name in asdict(queue.counts())} == asdict(queue.counts())
    assert (row["rates"], row["lost"], row["paused"]) == (
        {"enqueued": 0.0, "completed": 0.0},
        0,
        False,
    )
    code, out, _ = once(newest.url, "--once", "emails", capfd=capfd)
    head, line = (line.split("\t") for line in out.splitlines())
    shown = dict(zip(head, line, strict=True))
    assert (code, shown["queue"], shown["waiting"], shown["in/s"]) == (0, "emails", "3", "0.0")


def test_refusals(
    newest: Server, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing terminal, extra or queue and options of `--once` give one line and exit code 2."""
    for arguments, words in (
        ([], "headrace top needs a terminal; headrace top --once needs none"),
        (["--json"], "--json, and names of queues, are for headrace top --once"),
        (["--once", "nowhere"], "there is no queue nowhere"),
    ):
        code, out, err = once(newest.url, *arguments, capfd=capfd)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert words in err
    for name in [name for name in sys.modules if name.startswith("headrace.console.top")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    code, out, err = once(newest.url, capfd=capfd)
    assert (code, out) == (2, "")
    assert err == f"headrace: headrace top is an extra: {install_command('top')}\n"


def test_on_a_terminal(newest: Server, queue: Queue) -> None:
    """It shows the queues, and q ends it."""
    queue.enqueue(b"x")
    code, seen = on_a_terminal(["top"], newest.url, b"q", prompt=b"emails")
    assert code == 0, seen[-2000:]
