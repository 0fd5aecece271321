"""The processes that the program `headrace` starts, as forks of the one that starts them: they take milliseconds, not
the third of a second of processor time that an interpreter and its imports take.
"""

from __future__ import annotations

import logging
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import IO, Any, NoReturn

import typer.main

from headrace._cli import main, processes
from headrace._cli.app import app

COMMAND = typer.main.get_command(app)  # made of all functions of the program, which takes longer than most commands
STANDARD = {signal.SIGINT: signal.default_int_handler, **dict.fromkeys((signal.SIGTERM, signal.SIGHUP), signal.SIG_DFL)}
FILES_AT_MOST = 4096  # of a process: none of the tests' has nearly so many


def program() -> None:
    """Run the program `headrace`: what it starts are forks."""
    typer.main.get_command = lambda _: COMMAND
    processes.subprocess = SimpleNamespace(  # type: ignore[assignment,unused-ignore]
        Popen=Fork, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    main()


class Fork:
    """A module that runs as a program; what has a name of `subprocess.Popen` is what it is there."""

    returncode: int | None = None

    def __init__(
        self, command: Sequence[str], *, stdin: Any, stdout: IO[bytes] | None, stderr: IO[bytes] | None,
        pass_fds: Sequence[int], start_new_session: bool,
    ) -> None:  # fmt: skip
        python, safely, run, module, *arguments = command
        assert [python, safely, run, stdin] == [sys.executable, "-P", "-m", subprocess.DEVNULL]
        assert start_new_session
        self._command = list(command)
        sys.stdout.flush()
        sys.stderr.flush()
        # What a signal raises within what is called for a fork would be ignored.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STANDARD)
        self.pid = os.fork()
        if self.pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        else:
            output = [number if file is None else file.fileno() for number, file in ((1, stdout), (2, stderr))]
            entered(module, arguments, output, pass_fds)

    def poll(self) -> int | None:
        """Look whether it has ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        """Wait for its end. Raises `subprocess.TimeoutExpired`."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self._command, timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def entered(module: str, arguments: Sequence[str], output: Sequence[int], kept: Sequence[int]) -> NoReturn:
    """Run a module as a program, with nothing of the process that has forked but what it has imported."""
    code: object = 1
    try:
        signal.set_wakeup_fd(-1)
        for number, handler in STANDARD.items():
            signal.signal(number, handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), *output]):
            os.dup2(file, number)
        opened = [2, *sorted(kept), FILES_AT_MOST]
        for before, after in pairwise(opened):
            os.closerange(before + 1, after)
        for logger in logging.root, logging.getLogger("headrace"):
            logger.handlers.clear()
            logger.setLevel(logging.WARNING if logger is logging.root else logging.NOTSET)
        sys.argv = [module, *arguments]
        warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
