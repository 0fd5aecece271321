"""The processes of a parallel run of the tests, as forks of one that has imported what they import: pytest, its
plugins, and the tests, which together take two seconds of processor time.
"""

from __future__ import annotations

import compileall
import gc
import multiprocessing as mp
import os
import shlex
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest
from hypothesis import find
from hypothesis.strategies import booleans

import headrace

CONTEXT: Any = mp.get_context("fork")
HERE = Path(__file__).parent
FRESH = [Path(headrace.__file__).parent, HERE, HERE.parent / "chaos"]  # what interpreters import that tests start


class Nodes:
    """A process that has imported modules, of which each further process is a fork.

    Two import them, from both ends: what one has compiled, the other reads.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        other = CONTEXT.Process(target=imported, args=(modules[::-1],))
        other.start()
        for folder in FRESH:
            compileall.compile_dir(folder, quiet=2)  # once: the forkservers all start at once, and some may not write
        imported(modules)
        find(booleans(), bool)  # at its first example, hypothesis parses all modules of headrace
        other.join()
        gc.freeze()  # the collector would go through it ten times at the end of pytest, and in forks, copy it
        with ExitStack() as opened:
            address = str(Path(opened.enter_context(TemporaryDirectory(prefix="headrace-"))) / "forks")
            listener = opened.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen(64)
            theirs, self._link = CONTEXT.Pipe(duplex=False)
            self._process = CONTEXT.Process(target=forking, args=(listener, theirs, self._link))
            self._process.start()
            listener.close()
            theirs.close()
            self._opened = opened.pop_all()
        self.python = shlex.join([sys.executable, "-I", "-S", str(HERE / "node.py"), address])
        """The command line of a node: it stands in the place of Python."""

    def close(self) -> None:
        """Wait until all have ended."""
        self._link.close()
        self._process.join()
        self._opened.close()


def imported(modules: Iterable[str]) -> None:
    """Import modules; what one of them raises is told of when its tests are collected."""
    for module in modules:
        with suppress(Exception, pytest.skip.Exception):
            import_module(module)


def forking(listener: socket.socket, theirs: Connection, link: Connection) -> None:
    """Make a fork for each program that connects, and tell it when that has ended; end when nothing more can come."""
    link.close()
    nodes: dict[Any, tuple[Any, socket.socket]] = {}
    open_ends: list[Any] = [listener, theirs]
    while open_ends or nodes:
        for ready in wait([*open_ends, *nodes]):
            if ready in nodes:
                process, asking = nodes.pop(ready)
                process.join()
                with asking, suppress(OSError):  # it may have been killed
                    asking.send(str(abs(process.exitcode)).encode())
            elif ready is theirs:
                open_ends.clear()
                listener.close()
            else:
                asking, _ = listener.accept()
                _, streams, _, _ = socket.recv_fds(asking, 1, 3)
                process = CONTEXT.Process(target=serving, args=(streams, [listener, asking, theirs]))
                process.start()
                for stream in streams:
                    os.close(stream)
                nodes[process.sentinel] = process, asking


def serving(streams: Sequence[int], others: Sequence[Any]) -> None:
    """Do what `python -c` does with the line that execnet has it run: run the program that comes over its input."""
    for other in others:
        other.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, closefd=False)
    main = sys.modules["__main__"] = ModuleType("__main__")  # else processes that it starts would import pytest again
    exec(eval(sys.stdin.readline()), vars(main))
