"""Programs in their own processes, which are `headrace` and code of a test."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

PROGRAM = [sys.executable, "-m", "headrace"]
PATIENCE = 120.0  # seconds; these are whole processes, on a busy machine
TERMINAL = {"TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
Program = Callable[..., "subprocess.CompletedProcess[str]"]
Terminal = Callable[..., tuple[int, str]]  # an exit code, and all that was to be seen


class Started(subprocess.Popen[bytes]):
    """A program in a session of its own, which is killed where its `with` block ends."""

    def __init__(self, command: Sequence[str], **how: Any) -> None:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        super().__init__(command, start_new_session=True, **(pipes | how))

    def close(self) -> None:
        """Kill it, wait for its end, and close its streams."""
        self.kill()
        self.wait(PATIENCE)
        for stream in self.stdin, self.stdout, self.stderr:
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class Script(Started):
    """Python code that runs as a program. *options* are the interpreter's."""

    def __init__(
        self, code: str, arguments: Sequence[str] = (), *, options: Sequence[str] = (), **how: Any
    ) -> None:
        super().__init__([sys.executable, *options, "-c", code, *arguments], **how)


def environment(url: str | None) -> dict[str, str]:
    """Return the environment with *url* as its only server, and buffered output as users have
    it."""
    others = ("HEADRACE_URL", "REDIS_URL", "PYTHONUNBUFFERED")
    bare = {name: value for name, value in os.environ.items() if name not in others}
    return bare if url is None else bare | {"HEADRACE_URL": url}


def started(*arguments: str, url: str | None, **how: Any) -> Started:
    """Start the program as users do. *how* has the options of `Started`."""
    return Started([*PROGRAM, *arguments], env=environment(url) | how.pop("env", {}), **how)


def refused(done: subprocess.CompletedProcess[str], *words: str, code: int = 2) -> None:
    """Check that the program wrote one line with all *words* to standard error, and nothing
    else."""
    assert (done.returncode, done.stdout) == (code, ""), done
    assert re.fullmatch(r"headrace: [^\n]+\n", done.stderr), done.stderr
    for word in words:
        assert word in done.stderr


def on_a_terminal(
    arguments: list[str], url: str, answer: bytes = b"", prompt: bytes = b"[y/N]"
) -> tuple[int, str]:
    """Run the program on its own terminal. Return its exit code and all text that was seen
    there."""
    ours, theirs = pty.openpty()
    with started(
        *arguments, url=url, env=TERMINAL, stdin=theirs, stdout=theirs, stderr=theirs
    ) as running:
        os.close(theirs)
        seen = seen_on(ours, answer, prompt)
        return running.wait(PATIENCE), seen


def seen_on(terminal: int, answer: bytes, prompt: bytes) -> str:
    """Return all text that was seen on a terminal until no process has it open. Answer its
    *prompt*."""
    seen = b""
    # Linux: nobody else has it open
    with os.fdopen(terminal, "r+b", buffering=0) as file, suppress(OSError):
        while chunk := file.read(4096):
            seen += chunk
            if answer and prompt in seen:
                file.write(answer)
                answer = b""
    return seen.decode()
