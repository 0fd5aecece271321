"""The time until the jobs of a killed worker run elsewhere, from SIGKILL to the handler of a peer.

    python bench/recovery.py --url redis://localhost:6379/0 [--kills 100] [--heartbeat 0.5] \
        [--timeout 2] [--young]

Each kill has a worker of its own, a process, that holds a job; the peer's handler takes it over.
With `--young` the peer is a process that has registered just before the kill, and is replaced after
it.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import signal
import statistics
import time
from multiprocessing.connection import Connection, wait
from typing import Any

from attrs import frozen

from headrace import Queue, Worker

NAME = "bench-recovery"
PATIENCE = 60.0  # seconds


def work(url: str, heartbeat: float, timeout: float, started: Connection, hold: bool) -> None:
    """Run a worker. With *hold* it keeps its job until it is killed."""
    worker = Worker(url=url, heartbeat=heartbeat, timeout=timeout)

    @worker.handler(NAME, concurrency=1)
    def handle(job: Any) -> None:
        started.send(time.monotonic())
        if hold:
            time.sleep(3600)

    worker.run()


@frozen
class Child:
    """A worker's process with its own pipe, because SIGKILL would leave a shared lock held."""

    process: Any
    started: Connection

    def kill(self) -> None:
        """Kill the process, like a machine that fails."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.started.close()


def runs(*children: Child) -> tuple[Child, float]:
    """Return which of these processes started a job, and when."""
    ready = wait([child.started for child in children], PATIENCE)
    if not ready:
        raise SystemExit(f"no worker started a job within {PATIENCE:.0f} s")
    child = next(child for child in children if child.started is ready[0])
    return child, child.started.recv()


def main() -> None:
    """Print p50, p99 and the worst."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--heartbeat", type=float, default=0.5)
    parser.add_argument("--timeout", type=float, default=2.0)
    parser.add_argument("--young", action="store_true")
    args = parser.parse_args()
    context = mp.get_context("spawn")
    took: list[float] = []
    with Queue(NAME, url=args.url) as queue:
        queue.admin.delete()

        def begin(*, hold: bool) -> Child:
            """Start a worker and wait until it is registered."""
            known = {worker.name for worker in queue.admin.workers()}
            ours, theirs = context.Pipe(duplex=False)
            arguments = (args.url, args.heartbeat, args.timeout, theirs, hold)
            process = context.Process(target=work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            until = time.monotonic() + PATIENCE
            while not {worker.name for worker in queue.admin.workers()} - known:
                if time.monotonic() > until:
                    raise SystemExit(f"no worker came within {PATIENCE:.0f} s")
                time.sleep(0.01)
            return Child(process, ours)

        peer = None if args.young else begin(hold=False)
        if peer is not None:
            time.sleep(2 * args.timeout)  # it has lived for its timeout
        for number in range(args.kills):
            victim = begin(hold=True)
            others = [] if peer is None else [peer]
            queue.enqueue(b"x")
            while runs(victim, *others)[0] is not victim:
                queue.enqueue(b"x")  # until the job is the victim's
            part = number % 10 / 10  # all moments between two beats alike
            if peer is None:
                time.sleep(args.heartbeat * part)
                heir = begin(hold=False)
            else:
                time.sleep(args.timeout * (0.5 + part))
                heir = peer
            killed = time.monotonic()
            victim.kill()
            took.append(runs(heir)[1] - killed)
            while queue.counts().leased:  # or what kills the heir leaves it to the next
                time.sleep(0.01)
            if peer is None:
                heir.kill()
        if peer is not None:
            peer.kill()
        queue.admin.delete()
    took.sort()
    p99 = took[min(len(took) - 1, int(0.99 * len(took)))]
    print(
        f"{len(took)} kills: p50 {statistics.median(took):.2f} s, p99 {p99:.2f} s, worst {took[-1]:.2f} s"
    )


if __name__ == "__main__":
    main()
