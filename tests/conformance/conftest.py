"""Helpers of this folder. They start other clients that act meanwhile, and the program."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main

from headrace import Queue
from headrace.console.cli.app import app
from tests.support.colours import Connect
from tests.support.program import PATIENCE, TERMINAL, Program, Terminal, seen_on, started
from tests.support.servers import Server, binaries
from tests.support.steps import somebody_waits


@pytest.fixture
def nowhere(colour: str) -> Iterator[Connect]:
    """Return a maker of queues on a missing server. Every call of such a queue fails with a
    ConnectionError."""
    with Connect(
        colour, SimpleNamespace(url="unix:///nonexistent/socket", binary=binaries()[0])
    ) as connect:
        yield connect


@pytest.fixture
def meanwhile(server: Server) -> Iterator[Callable[[Callable[[Queue], object]], None]]:
    """Let another client of `q` act once a client is blocked, as in `meanwhile(lambda other:
    other.enqueue(b"a"))`."""
    acts: list[Future[object]] = []
    with ThreadPoolExecutor(1) as pool, server.queue("q") as other:

        def run(act: Callable[[Queue], object]) -> object:
            somebody_waits(server)
            return act(other)

        yield lambda act: acts.append(pool.submit(run, act))
        for act in acts:
            act.result(PATIENCE)


@pytest.fixture
def headrace(newest: Server, tmp_path: Path) -> Program:
    """Run the program to its end. `at=None` names no server."""

    def run(
        *arguments: str, given: str | bytes = b"", at: str | None = newest.url, **more: str
    ) -> Any:
        data = given.encode() if isinstance(given, str) else given
        with started(*arguments, url=at, env=more, cwd=tmp_path) as running:
            out, err = (output.decode() for output in running.communicate(data, PATIENCE))
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(arguments, running.returncode, out, err)

    return run


@cache
def command() -> Any:
    """Read the program's commands from their functions once, because that takes most of the time of
    a command."""
    return typer.main.get_command(app)


@pytest.fixture
def inside(newest: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run the program in this process with these streams, in a fifth of the time, and return its
    exit code."""

    def run(
        arguments: Sequence[str], more: Mapping[str, str], at: str | None, **streams: Any
    ) -> int:
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name in ("HEADRACE_URL", "REDIS_URL"):
                patch.delenv(name, raising=False)
            for name, value in {**({} if at is None else {"HEADRACE_URL": at}), **more}.items():
                patch.setenv(name, value)
            for name, stream in streams.items():
                patch.setattr(sys, name, stream)
            with pytest.raises(SystemExit) as ended:
                command()(list(arguments), prog_name="headrace")
        return int(ended.value.code or 0)

    return run


@pytest.fixture
def within(
    newest: Server, inside: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> Program:
    """Run the program in this process, like `headrace`. Standard input is a pipe or a file."""

    def run(
        *arguments: str, given: bytes | Path = b"", at: str | None = newest.url, **more: str
    ) -> Any:
        with ExitStack() as stack:
            if isinstance(given, Path):
                stdin = stack.enter_context(given.open())
            else:
                reading, writing = os.pipe()
                stdin = stack.enter_context(os.fdopen(reading))
                with os.fdopen(writing, "wb") as pipe:
                    pipe.write(given)  # less than a pipe holds
            code = inside(arguments, more, at, __stdin__=stdin)
        out, err = capfd.readouterr()
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(arguments, code, out, err)

    return run


@pytest.fixture
def terminal(newest: Server, inside: Callable[..., int]) -> Terminal:
    """Run the program on a terminal in this process, like `on_a_terminal`."""

    def run(
        *arguments: str, answer: bytes = b"", at: str = newest.url, **more: str
    ) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        with ThreadPoolExecutor(1) as pool:
            seen = pool.submit(seen_on, ours, answer, b"[y/N]")
            with os.fdopen(os.dup(theirs)) as stdin, os.fdopen(theirs, "w", buffering=1) as out:
                code = inside(
                    arguments,
                    TERMINAL | more,
                    at,
                    stdin=stdin,
                    __stdin__=stdin,
                    stdout=out,
                    stderr=out,
                )
            return code, seen.result(PATIENCE)

    return run
