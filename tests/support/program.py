"""The program `headrace`: from its interpreter on, as users start it, or in processes that have what it imports."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.support.forked import Forked
from tests.support.forks import program

PROGRAM = [sys.executable, "-m", "headrace"]
PATIENCE = 120.0  # seconds; these are whole processes, on a busy machine
Program = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(url: str | None) -> dict[str, str]:
    """Ours, with *url* as the only server that is named, and buffered output, as users have it."""
    others = ("HEADRACE_URL", "REDIS_URL", "PYTHONUNBUFFERED")
    bare = {name: value for name, value in os.environ.items() if name not in others}
    return bare if url is None else bare | {"HEADRACE_URL": url}


def started(*arguments: str, url: str | None, **how: Any) -> Forked:
    """Start the program, and what it starts, in processes that have what it imports; *how*: as for `Forked`."""
    return Forked(program, arguments, env=environment(url) | how.pop("env", {}), **how)


def as_a_user_does(*arguments: str, url: str | None, **how: Any) -> subprocess.Popen[bytes]:
    """Start the program from its interpreter on; *how*: as for `subprocess.Popen`."""
    return subprocess.Popen([*PROGRAM, *arguments], env=environment(url) | how.pop("env", {}), **how)


def refused(done: subprocess.CompletedProcess[str], *words: str, code: int = 2) -> None:
    """It said one line on standard error that has all *words*, and nothing else."""
    assert (done.returncode, done.stdout) == (code, ""), done
    assert re.fullmatch(r"headrace: [^\n]+\n", done.stderr), done.stderr
    for word in words:
        assert word in done.stderr


def on_a_terminal(arguments: list[str], url: str, answer: bytes = b"", columns: int = 100) -> tuple[int, str]:
    """Run the program on a terminal of its own; its exit code, and all that was to be seen there."""
    ours, theirs = pty.openpty()
    env = {"TERM": "xterm", "COLUMNS": str(columns)}
    with started(*arguments, url=url, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        seen, deadline = b"", time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            ready, _, _ = select.select([ours], [], [], 0.1)
            if not ready:
                continue
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # Linux says so when nobody has the other end open any more
                break
            if not chunk:
                break
            seen += chunk
            if answer and b"[y/N]" in seen:
                os.write(ours, answer)
                answer = b""
        code = running.wait(PATIENCE)
    os.close(ours)
    return code, seen.decode()
