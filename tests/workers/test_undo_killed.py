"""Workers that are killed in and between undos. The next one goes on with what is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace import AsyncWorker, Queue, Retry, Worker
from headrace._core.steps.undo import Undos
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import blocking, coroutine
from tests.support.processes import CONTEXT
from tests.support.servers import Server

STEPS = ("flight", "hotel", "car")


class Log:
    """A file of what was called. The process is killed where an undo begins or ends for the first
    time, and before the job is settled or goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def lines(self) -> list[str]:
        return self._path.read_text("ascii").splitlines() if self._path.exists() else []

    def note(self, line: str, *, kills: bool) -> None:
        first = line not in self.lines
        with self._path.open("a", encoding="ascii") as file:
            file.write(f"{line}\n")
        if first and kills:
            os.kill(os.getpid(), signal.SIGKILL)


def work(kind: str, url: str, path: Path, way: str) -> None:
    """Run a worker until it is killed, or terminated."""
    log = Log(path)
    worker: Any = (Worker if kind == "threads" else AsyncWorker)(url=url, name="w", heartbeat=0.2)

    def of_this_kind(call: Callable[..., Any]) -> Callable[..., Any]:
        async def called(*args: Any) -> Any:
            return call(*args)

        return called if kind == "tasks" else call

    def act(name: str) -> str:
        log.note(name, kills=False)
        return name

    def undo(name: str) -> None:
        log.note(f"begins -{name}", kills=True)
        log.note(f"ends -{name}", kills=True)

    def handle(job: Any) -> Iterator[Any]:
        for name in STEPS:
            yield partial(job.step, name, of_this_kind(act), name, undo=of_this_kind(undo))
        if way == "dies":
            raise ValueError("no money")
        yield job.undo
        log.note("goes on", kills=True)

    dead = Undos.dead

    def noted(*args: Any) -> Any:
        log.note("dead", kills=True)
        return dead(*args)

    Undos.dead = noted  # type: ignore[method-assign]
    adapt = coroutine if kind == "tasks" else blocking
    worker.handler("q", retry=Retry(attempts=1))(adapt(handle))
    worker.run()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["dies", "goes on"])
def test_a_worker_is_killed_in_and_between_undos(
    kind: str, newest: Server, tmp_path: Path, way: str
) -> None:
    """Each undo runs until it is recorded, and not again. No step runs twice."""
    log = Log(tmp_path / "log")
    kills = 0
    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"x", id="a")
        while queue.counts().present > queue.counts().dead:
            process = CONTEXT.Process(target=work, args=(kind, newest.url, tmp_path / "log", way))
            process.start()
            try:
                until(partial(_ended, process, queue), "a death, or the end")
            finally:
                process.terminate()
                process.join(PATIENCE)
            kills += process.exitcode == -signal.SIGKILL
        dead = [one.reason for one in queue.admin.dead()]
    undos = [
        line
        for name in reversed(STEPS)
        for line in (*2 * [f"begins -{name}"], f"ends -{name}", f"begins -{name}", f"ends -{name}")
    ]
    end = "dead" if way == "dies" else "goes on"
    assert log.lines == [*STEPS, *undos, end, end]
    assert kills == 7
    assert dead == (["ValueError: no money"] if way == "dies" else [])


def _ended(process: Any, queue: Queue) -> bool:
    counts = queue.counts()
    return not process.is_alive() or counts.present == counts.dead
