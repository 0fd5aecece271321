"""The acts of a user at a terminal. They start a program, read its output, ask for a page and press
Ctrl-C.

It is copied beside each journey, and imports nothing that a journey does not declare.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

PATIENCE = 60.0  # seconds: it costs nothing where nothing fails


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until *condition* is true and return its value."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {PATIENCE:g} s in vain: {what}"
        time.sleep(0.05)
    return found


class Program:
    """A program in its own session with its output and errors in a file. It is killed at the end of
    the block."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.command = " ".join(command)
        self._file = Path(f"{command[0]}-{time.monotonic_ns()}.log")
        with self._file.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """The whole output so far."""
        return self._file.read_text("utf-8", "replace")

    def says(self, *words: str) -> str:
        """Wait for a line that has all *words*, and return it."""

        def found() -> str | None:
            lines = self.output.splitlines()
            hit = next((line for line in lines if all(word in line for word in words)), None)
            ended = self._process.poll()
            assert hit or ended is None, (
                f"{self.command} ended with {ended} before it said {words}:\n{self.output}"
            )
            return hit

        try:
            line: str = until(found, f"{words}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.command} said:\n{self.output}") from None
        return line

    def ends(self, *codes: int) -> str:
        """Wait for the end with one of these exit codes or 0, and return the output."""
        code = self._process.wait(PATIENCE)
        assert code in codes or code == 0, f"{self.command} ended with {code}\n{self.output}"
        return self.output

    def stop(self, by: signal.Signals = signal.SIGTERM) -> str:
        """Send a signal as Ctrl-C or a supervisor does, wait for the end, and return the output."""
        self._process.send_signal(by)
        return self.ends(-by)  # some say so in the end, once all is put away

    def kill(self) -> None:
        """Kill the program with all processes that it has started, unless it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def ask(url: str, method: str = "GET") -> tuple[int, Any]:
    """Ask for a page and return the status and its JSON."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, method=method), timeout=PATIENCE
        ) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
