"""Foreign texts on a terminal. The terminal obeys none of them."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from typing import Any

import pytest
from rich.cells import cell_len

from headrace import Queue
from headrace._telemetry.log import TextLines
from headrace.console.cli import output
from headrace.console.cli.console import say
from tests.support.program import Program, Terminal
from tests.support.servers import Server

HOSTILE = "\x1b]0;title\x07\x1b[31m\x9b2J\u202e\x7fred"
COMMANDS = [
    ["workers"],
    ["workers", "--json"],
    ["list", "q"],
    ["list", "q", "--json"],
    ["show", "q", "i"],
    ["stats"],
]


def _copied(client: Any, key: bytes, name: bytes) -> None:
    """Copy the keys of a name under a hostile name."""
    sorted_by = client.type(key) == b"zset"
    found = dict(client.zrange(key, 0, -1, withscores=True)) if sorted_by else client.hgetall(key)
    for member, value in found.items():
        if name in member:
            other = HOSTILE.encode() + member
            client.zadd(key, {other: value}) if sorted_by else client.hset(key, other, value)


def _obeyed(text: str) -> list[str]:
    text = re.sub(r"\x1b\[[01]m", "", text)  # titles of tables are bold
    return [c for c in text if not c.isprintable() and c not in "\r\n\t"]


@pytest.fixture
def hostile(newest: Server) -> str:
    """Return the URL of a server with a worker, a header and a payload that have such names."""
    with Queue("q", url=newest.url) as queue:
        queue.enqueue(HOSTILE.encode(), id="i", headers={HOSTILE: HOSTILE})
        lease = queue.lease()
        assert lease is not None
        with newest.client() as client:
            for key in [
                key for key in client.scan_iter("*") if client.type(key) in {b"hash", b"zset"}
            ]:
                _copied(client, key, lease.worker.encode())
    return newest.url


def test_no_command_writes_what_a_terminal_obeys(within: Program, hostile: str) -> None:
    """Pipes and JSON get no control characters either. JSON has its own escapes, which mean the
    same."""
    seen = ""
    for command in COMMANDS:
        done = within(*command)
        assert done.returncode == 0, done
        assert _obeyed(done.stdout + done.stderr) == [], command
        seen += done.stdout
    assert r"\x1b]0;title" in seen


def test_on_a_terminal(hostile: str, terminal: Terminal) -> None:
    code, seen = terminal("show", "q", "i", at=hostile)
    assert code == 0
    assert _obeyed(seen) == []


@pytest.mark.parametrize("terminal", [True, False])
def test_every_door(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    """Tables, fields, lines and messages are tested for every command."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    output.show(("id", "name"), [("i", HOSTILE)])
    output.show_fields([(HOSTILE, HOSTILE)])
    output.outcome(False, HOSTILE, {})
    output.outcome(True, "", {HOSTILE: HOSTILE})
    say(HOSTILE)
    written = capsys.readouterr()
    assert _obeyed(written.out + written.err) == []
    assert written.out.count("title") >= 6


def test_json_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"é😀 ": HOSTILE, "\U000e0001": ['"\\']}
    output.print_json(value)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == value
    assert "é😀" in line


def test_log_lines() -> None:
    """Lines of the library are escaped. Lines of an application are not."""
    for name, expected in {"headrace": False, "app": True}.items():
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(TextLines())
        record = logging.makeLogRecord(
            {"name": name, "levelname": "INFO", "msg": f"{HOSTILE}\nsecond"}
        )
        handler.handle(record)
        assert bool(_obeyed(stream.getvalue())) is expected
        assert "\nsecond" in stream.getvalue()


def test_cells_of_the_terminal() -> None:
    from headrace.console.top.pane import cell  # textual takes long to import

    text = cell(HOSTILE, 30).plain
    assert (_obeyed(text), cell_len(text)) == ([], 30)
