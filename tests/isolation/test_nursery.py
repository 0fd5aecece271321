"""The fork server of children, where one child, or one fork, fails."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace import _forks
from headrace._isolation import nursery as module
from headrace._isolation.link import Broken, Link
from headrace._isolation.nursery import Nursery
from headrace._isolation.program import Place, Program
from headrace._model.codec import BytesCodec
from tests.support.awaiting import until

pytestmark = [pytest.mark.long, pytest.mark.slow]
LOADED = """
import os
import signal

forks = []
fork = os.fork
signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def may_fork():
    forks.append(1)
    if len(forks) == {fails}:
        raise BlockingIOError(11, "no process to spare")
    return fork()


os.fork = may_fork


def handle(job):
    pass
"""  # it runs in the fork server
Make = Callable[..., Nursery]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Nursery] = []

    def one(fails: int = 0) -> Nursery:
        (tmp_path / "loaded_there.py").write_text(LOADED.format(fails=fails), "utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        program = Program({None: Place("loaded_there", "handle")}, BytesCodec())
        made.append(Nursery("test", program, loads=True))
        return made[0]

    yield one
    made[0].end()


def ready(link: socket.socket) -> None:
    assert Link(link).receive() == ({"is": "ready"}, [])


def exists(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_a_child_whose_end_nobody_awaits_ends_alone(make: Make) -> None:
    """The others live on, and the server forks more."""
    nursery = make()
    first, told, link = nursery.start()
    with link:
        ready(link)
        os.close(told)
    until(lambda: not exists(first), "the end of the child")
    _, second, other = nursery.start()
    with other:
        ready(other)
    assert module.heard(second) == 0
    os.close(second)


def test_a_fork_that_fails_ends_no_child(make: Make) -> None:
    nursery = make(fails=2)
    first, told, link = nursery.start()
    with link:
        ready(link)
        with pytest.raises(Broken):
            nursery.start()
        third, again, other = nursery.start()
        with other:
            ready(other)
        assert module.heard(again) == 0
        assert exists(first)
        assert third != first
    assert module.heard(told) == 0
    os.close(told)
    os.close(again)


def test_no_fork_of_ours_gets_the_ends_of_others(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copies would hide that the server or a child has gone. So it waits for moments."""
    waits: list[bool] = []

    def tries() -> None:
        waits.append(not _forks.unforked.acquire(blocking=False))
        if not waits[-1]:
            _forks.unforked.release()

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def calls(*args: Any, **options: Any) -> Any:
            fork = threading.Thread(target=tries)
            fork.start()
            fork.join()
            return call(*args, **options)

        return calls

    monkeypatch.setattr(module.socket, "send_fds", watched(socket.send_fds))
    monkeypatch.setattr(module.subprocess, "Popen", watched(subprocess.Popen))
    _, told, link = make().start()
    with link:
        ready(link)
    assert waits == [True, True]
    os.close(told)
