"""Worker processes. Payloads tell their handlers what to do, and a file records what they did.

`hold…` runs until the gate is open, on the first attempt; `keep…` until its lease is lost; `die…`
kills its process; anything else is quick.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from attrs import frozen

from headrace import AsyncWorker, Job, Worker
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import blocking, coroutine

CONTEXT = mp.get_context("forkserver")  # a child takes milliseconds, and has nothing of ours
PRELOADED = ["headrace", "redis.asyncio", "tests.chaos.actors", "tests.support.processes"]
CONTEXT.set_forkserver_preload(PRELOADED)


def main(
    kind: str,
    url: str,
    folder: Path,
    worker_options: dict[str, Any],
    handler_options: dict[str, Any],
) -> None:
    worker: Any = (
        Worker(url=url, **worker_options)
        if kind == "threads"
        else AsyncWorker(url=url, **worker_options)
    )

    def note(event: str, job: Job | None = None) -> None:
        row = [
            event,
            job.payload.decode() if job else "",
            job.attempt if job else 0,
            os.getpid(),
            time.time(),
        ]
        with (folder / "log").open("a") as log:
            log.write(json.dumps(row) + "\n")

    def body(job: Job) -> Iterator[float]:
        note("began", job)
        if job.payload.startswith(b"die"):
            os.kill(os.getpid(), signal.SIGKILL)
        holds = job.payload.startswith(b"hold") and job.attempt == 1
        try:
            while job.payload.startswith(b"keep") or (holds and not (folder / "gate").exists()):
                if job.lost:
                    note("lost", job)
                    return
                yield 0.01
        except asyncio.CancelledError:
            note("lost" if job.lost else "cancelled", job)
            raise
        note("done", job)

    def watch() -> None:
        while not (worker._running and worker._running.stopping.is_set()):
            time.sleep(0.005)
        note("stopping")

    adapt = coroutine if kind == "tasks" else blocking
    worker.handler("q", **handler_options)(adapt(body))
    threading.Thread(target=watch, daemon=True).start()
    worker.run()
    note("stopped")


@frozen
class Note:
    """A line that a handler logged."""

    event: str
    payload: str
    attempt: int
    pid: int
    at: float
    """In seconds of the machine's clock, which is the server's, too."""


class Processes(ExitStack):
    """Worker processes of one test, which share a folder, and end with its `with` block."""

    def __init__(self, kind: str, url: str, folder: Path) -> None:
        super().__init__()
        self.kind, self.url, self.folder = kind, url, folder

    def start(
        self,
        name: str,
        *,
        concurrency: int,
        heartbeat: float = 0.3,
        timeout: float = 1.0,
        url: str = "",
        **handler: Any,
    ) -> Any:
        """Start a process, which has `pid`, `kill()` and `join()`. *url* is another address of the
        server."""
        worker = {"name": name, "heartbeat": heartbeat, "timeout": timeout}
        arguments = (
            self.kind,
            url or self.url,
            self.folder,
            worker,
            {"concurrency": concurrency} | handler,
        )
        process = CONTEXT.Process(target=main, args=arguments)
        process.start()
        # the last comes first
        for end in (process.close, partial(process.join, PATIENCE), process.kill):
            self.callback(end)
        return process

    def notes(self, event: str, **wanted: Any) -> list[Note]:
        path = self.folder / "log"
        rows = (
            [Note(*json.loads(line)) for line in path.read_text().splitlines()]
            if path.exists()
            else []
        )
        return [
            row
            for row in rows
            if row.event == event and all(getattr(row, key) == wanted[key] for key in wanted)
        ]

    def await_notes(self, number: int, event: str, **wanted: Any) -> list[Note]:
        until(
            lambda: len(self.notes(event, **wanted)) >= number, f"{number} times {event} {wanted}"
        )
        return self.notes(event, **wanted)

    def open_gate(self) -> None:
        (self.folder / "gate").touch()
