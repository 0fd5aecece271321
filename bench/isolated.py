"""Isolated handlers beside threads, Celery's prefork pool, and RQ, which forks for each job.

    python bench/isolated.py [--rounds 3] [--jobs 3000] [--busy 200] [--only headrace,rq] [--write]

Each way has two processes, and one server. `empty` jobs do nothing, and `busy` jobs compute for
about 10 ms. Each job appends a byte to a file, and the rate is that of the bytes. The peers'
environments are made from the registry, as in `compare.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

URL = os.environ.get("BENCH_URL", "")
DONE = os.environ.get("BENCH_DONE", "")
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "bench" / "results" / "isolated.md"
WAYS = {
    "headrace threads": "two threads of one process: no isolation",
    "headrace isolated": "two warm children",
    "headrace isolated, 25 jobs": "the same, each replaced after 25 jobs",
    "celery prefork": "a pool of two processes",
    "celery prefork, 25 jobs": "the same, `worker_max_tasks_per_child=25`",
    "rq": "two workers, which fork for each job",
}
LIMIT_S = 120.0
WARM = 20  # jobs before the rate is measured


def note() -> None:
    file = os.open(DONE, os.O_WRONLY | os.O_APPEND)
    os.write(file, b".")
    os.close(file)


def empty(_job: Any = None) -> None:
    note()


def busy(_job: Any = None) -> None:
    total = 0
    for number in range(200_000):
        total += number
    note()


WORK: dict[str, Callable[..., None]] = {"empty": empty, "busy": busy}


# -- the programs, each in its own environment -----------------------------------------------------


def headrace(way: str, kind: str, jobs: int) -> None:
    its: Any = import_module("headrace")
    if jobs:
        with its.Queue("bench", url=URL) as queue:
            queue.enqueue_many([b"x" * 100] * jobs)
        return
    isolation: Any = import_module("headrace.isolation").Isolation
    limits = isolation(processes=2, recycle_jobs=25 if "25" in way else None)
    isolate = limits if "isolated" in way else False
    worker = its.Worker(URL)
    function = getattr(import_module("bench.isolated"), kind)
    worker.handler("bench", isolate=isolate, concurrency=2)(function)
    worker.run()


def celery(way: str, kind: str, jobs: int) -> None:
    app: Any = import_module("celery").Celery(
        "bench", broker=URL.replace("unix://", "redis+socket://")
    )
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=64,
        broker_connection_retry_on_startup=True,
        worker_max_tasks_per_child=25 if "25" in way else None,
    )
    task = app.task(WORK[kind], name="run")
    for _ in range(jobs):
        task.apply_async(("x" * 100,), queue="bench")
    if not jobs:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "CRITICAL"]
        app.worker_main(["--quiet", "worker", "-P", "prefork", "-c", "2", "-Q", "bench", *quiet])


def rq(_way: str, kind: str, jobs: int) -> None:
    its: Any = import_module("rq")
    connection = import_module("redis").Redis.from_url(URL)
    queue = its.Queue("bench", connection=connection)
    for _ in range(jobs):
        queue.enqueue(f"isolated.{kind}", "x" * 100, result_ttl=0)
    if not jobs:
        if os.fork() == 0:
            connection = import_module("redis").Redis.from_url(URL)
        its.Worker([its.Queue("bench", connection=connection)], connection=connection).work(
            logging_level="CRITICAL"
        )


PROGRAMS: dict[str, Callable[[str, str, int], None]] = {
    "headrace": headrace,
    "celery": celery,
    "rq": rq,
}


# -- the measurement -------------------------------------------------------------------------------


def measure(way: str, python: str, url: str, kind: str, jobs: int, done: Path) -> float:
    """Return the jobs a second of a worker that is warm, and has them all before it."""
    done.write_bytes(b"")
    environ = {**os.environ, "BENCH_URL": url, "BENCH_DONE": str(done)}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environ.pop("VIRTUAL_ENV", None)
    if not way.startswith("headrace"):
        environ["PYTHONPATH"] = ""
    command = [python, __file__, "--way", way, "--kind", kind]
    quiet: Any = {"env": environ, "cwd": ROOT / "bench", "stderr": subprocess.DEVNULL}
    every = WARM + jobs
    subprocess.run([*command, "--send", str(every)], check=True, timeout=LIMIT_S, **quiet)
    with subprocess.Popen([*command, "--send", "0"], start_new_session=True, **quiet) as worker:
        try:
            reached(done, WARM)
            first = done.stat().st_size
            began = time.monotonic()
            reached(done, every)
            return (every - first) / (time.monotonic() - began)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, 9)


def reached(done: Path, number: int) -> None:
    end = time.monotonic() + LIMIT_S
    while done.stat().st_size < number:
        if time.monotonic() > end:
            raise SystemExit(f"{done.stat().st_size} of {number} jobs in {LIMIT_S:g} s")
        time.sleep(0.002)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--busy", type=int, default=200)
    parser.add_argument("--only", default="headrace,celery,rq")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--way")
    parser.add_argument("--kind", default="empty")
    parser.add_argument("--send", type=int, default=0)
    args = parser.parse_args()
    if args.way:
        PROGRAMS[args.way.split()[0]](args.way, args.kind, args.send)
        return
    sys.path.insert(0, str(ROOT))
    environment = import_module("bench.compare").environment
    servers: Any = import_module("tests.support.servers")
    ways = [way for way in WAYS if way.split()[0] in args.only.split(",")]
    folder = ROOT / ".cache" / "compare"
    found: dict[str, dict[str, list[float]]] = {way: {"empty": [], "busy": []} for way in ways}
    pythons = {way: environment(way.split()[0], folder)[0] for way in ways}
    before = os.getloadavg()[0]
    with servers.Server(servers.binaries()[0]) as server:
        done = Path(server.path).with_name("done")
        for number in range(args.rounds):
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                for kind, jobs in (("empty", args.jobs), ("busy", args.busy)):
                    import_module("redis").Redis(unix_socket_path=server.path).flushall()
                    url = f"unix://{server.path}"
                    rate = measure(way, pythons[way], url, kind, jobs, done)
                    found[way][kind].append(rate)
                    print(json.dumps({"way": way, "kind": kind, "rate": round(rate)}), flush=True)
    lines = ["| | empty jobs, jobs/s | jobs of about 10 ms of Python, jobs/s |", "|---|---|---|"]
    for way in ways:
        cells = [
            f"{statistics.median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f})"
            for rates in found[way].values()
        ]
        lines.append(f"| {way}: {WAYS[way]} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    said = (
        "<!-- Written by bench/isolated.py. Do not edit. -->\n# Isolated handlers\n\n"
        f"{table}\n\nMedians of {args.rounds} interleaved rounds, in brackets the least and the most; "
        f"{args.jobs:,} and {args.busy:,} jobs of 100 bytes;\n{servers.binaries()[0].name} over a "
        f"unix socket without persistence, Python {sys.version.split()[0]}, {os.cpu_count()} cores, "
        f"a load of {before:.1f} before\nand {os.getloadavg()[0]:.1f} after. Repeat it with "
        "`python bench/isolated.py --write`.\n"
    )
    print(said)
    if args.write:
        PAGE.write_text(said, "utf-8")


if __name__ == "__main__":
    main()
