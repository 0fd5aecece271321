"""Programs in processes that have what they import: each a fork of one that has imported it, and has done nothing else.

A program takes milliseconds so, not the half second of processor time that Python and its imports take. What depends on
how a program is started (its interpreter's options, what it imports, what it leaves out) has to start it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Self

from attrs import frozen

from tests.support.awaiting import PATIENCE
from tests.support.processes import CONTEXT

Run = str | Callable[[], object]  # code, or a function


@frozen
class Inherited:
    """The part of a process that it has from the one that starts it."""

    folder: str
    environment: dict[str, str]
    streams: list[Connection]
    """Its standard input, output and error."""


def entered(run: Run, arguments: Sequence[str], inherited: Inherited) -> None:
    """Run a program, in a session of its own."""
    os.setsid()
    os.chdir(inherited.folder)
    os.environ.clear()
    os.environ.update(inherited.environment)
    for number, stream in enumerate(inherited.streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    tempfile.tempdir = None
    sys.argv = ["-c", *arguments]
    sys.stdin = sys.__stdin__ = os.fdopen(0)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w")
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1)
    if callable(run):
        run()
    else:
        exec(run, {"__name__": "__main__"})


class Forked:
    """A program that runs; what has a name of `subprocess.Popen` is what it is there."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def __init__(
        self,
        run: Run,
        arguments: Sequence[str] = (),
        *,
        stdin: Any = subprocess.PIPE,
        stdout: Any = subprocess.PIPE,
        stderr: Any = subprocess.PIPE,
        cwd: Path | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        streams: list[Connection] = []  # they are what can be sent
        for number, (name, given) in enumerate({"stdin": stdin, "stdout": stdout, "stderr": stderr}.items()):
            ours: IO[bytes] | None = None
            if given == subprocess.PIPE:
                reading, writing = os.pipe()
                ours, theirs = (os.fdopen(reading, "rb"), writing) if number else (os.fdopen(writing, "wb"), reading)
            else:
                theirs = os.dup(given if isinstance(given, int) else given.fileno())
            setattr(self, name, ours)
            streams.append(Connection(theirs))
        inherited = Inherited(str(cwd or Path.cwd()), dict(env), streams)
        self._process = CONTEXT.Process(target=entered, args=(run, list(arguments), inherited))
        self._process.start()
        for stream in streams:
            stream.close()

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Look whether it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for its end, and return its exit code."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"it has not ended within {timeout} s"
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def communicate(self, given: bytes = b"", timeout: float = PATIENCE) -> tuple[bytes, bytes]:
        """Write its input, less than a pipe holds, and read its output and then its errors until it ends."""
        if self.stdin is not None:
            self.stdin.write(given)
            self.stdin.close()
        out, err = (b"" if one is None else one.read() for one in (self.stdout, self.stderr))
        self.wait(timeout)
        return out, err

    def close(self) -> None:
        """End it, and close what leads to it."""
        self.kill()
        self.wait()
        for stream in self.stdin, self.stdout, self.stderr:
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
