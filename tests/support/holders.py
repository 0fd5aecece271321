"""Processes that hold persistent jobs, and log from when to when, by the server's clock, outside Redis."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from attrs import define

from headrace import AsyncWorker, Job, Worker
from tests.support.engines import blocking, coroutine
from tests.support.processes import CONTEXT, Processes


def main(kind: str, url: str, clock: str, folder: Path, options: dict[str, Any], handler: dict[str, Any]) -> None:
    """Run a worker process; it asks the server for the time over a connection of its own."""
    worker: Any = Worker(url=url, **options) if kind == "threads" else AsyncWorker(url=url, **options)
    direct = redis.Redis(unix_socket_path=clock)

    def note(event: str, job: Job) -> None:
        seconds, micros = direct.time()
        row = [event, job.payload.decode(), job.attempt, os.getpid(), seconds + micros / 1e6]
        with (folder / "log").open("a") as log:
            log.write(json.dumps(row) + "\n")

    def body(job: Job) -> Iterator[float]:
        note("opened", job)
        try:
            while not job.lost:
                yield 0.01
        finally:
            note("closed", job)

    worker.handler("q", persistent=True, **handler)((coroutine if kind == "tasks" else blocking)(body))
    worker.run()


@define
class Holders(Processes):
    """Processes that hold persistent jobs, like `Processes`."""

    clock: str = ""

    def start(
        self,
        name: str,
        *,
        concurrency: int,
        heartbeat: float = 0.3,
        timeout: float = 1.2,
        url: str | None = None,
        **handler: Any,
    ) -> Any:
        """Start one; *url*: another address of the server."""
        worker = {"name": name, "heartbeat": heartbeat, "timeout": timeout}
        given = (self.kind, url or self.url, self.clock, self.folder, worker, {"concurrency": concurrency} | handler)
        process = CONTEXT.Process(target=main, args=given)
        process.start()
        self._started.append(process)
        return process
