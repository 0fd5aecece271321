"""Isolated handlers beside threads, Celery's prefork pool, and RQ, which forks for each job.

    python bench/isolated.py [--rounds 3] [--jobs 3000] [--busy 200] [--only headrace,rq] [--write]

Each way has two processes, and one server. `empty` jobs do nothing, and `busy` jobs compute for
about 10 ms. Each job appends a byte to a file, and the rate is that of the bytes. Processor time is
of the worker with all its processes. A `lone` job is enqueued when the one before has its result.
The peers' environments are made from the registry, as in `compare.py`.
"""

from __future__ import annotations

import argparse
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
WARM = 20  # jobs before the rate is measured, at least
TRIES = 5  # of a measurement that began too late
LONE = 300  # lone jobs that are measured
LONE_WAYS = ("headrace threads", "headrace isolated")
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
MORE_US = 150.0  # a goal: over the same job in a thread
LESS = 3.0  # a goal: percent of the rate of busy jobs, with children that are replaced


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


def lone(_job: Any = None) -> bytes:
    return b"done"


WORK: dict[str, Callable[..., Any]] = {"empty": empty, "busy": busy, "lone": lone}


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


def used(pid: int) -> float:
    """Return the microseconds of processors of a process, its descendants, and ended ones."""
    try:
        its = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
        children = [int(one) for task in tasks for one in (task / "children").read_text().split()]
    except OSError:
        return 0.0
    return sum(map(int, its[11:15])) * TICK_US + sum(map(used, children))


def measure(
    way: str, python: str, url: str, kind: str, jobs: int, done: Path
) -> tuple[float, float] | None:
    """Return the jobs a second of a worker that is warm, and has them all before it, and the
    microseconds of processors a job. For lone jobs, return their rate. Return `None` if most jobs
    were over before the measurement began.
    """
    done.write_bytes(b"")
    environ = {**os.environ, "BENCH_URL": url, "BENCH_DONE": str(done)}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environ.pop("VIRTUAL_ENV", None)
    if not way.startswith("headrace"):
        environ["PYTHONPATH"] = ""
    command = [python, __file__, "--way", way, "--kind", kind]
    quiet: Any = {"env": environ, "cwd": ROOT / "bench", "stderr": subprocess.DEVNULL}
    warm = WARM if kind == "busy" else max(WARM, jobs)
    every = 0 if kind == "lone" else warm + jobs
    if every:
        subprocess.run([*command, "--send", str(every)], check=True, timeout=LIMIT_S, **quiet)
    with subprocess.Popen([*command, "--send", "0"], start_new_session=True, **quiet) as worker:
        try:
            if kind == "lone":
                return 1.0 / alone(url, jobs), 0.0
            reached(done, warm)
            before = used(worker.pid)
            began = time.monotonic()
            left = every - done.stat().st_size
            if left < jobs / 2:  # this process was not there in time
                return None
            reached(done, every)
            took = time.monotonic() - began
            return left / took, (used(worker.pid) - before) / left
        finally:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, 9)


def alone(url: str, jobs: int) -> float:
    """Return the median of the seconds from the enqueue of a lone job to its result."""
    took: list[float] = []
    with import_module("headrace").Queue("bench", url=url) as queue:
        for _ in range(WARM + jobs):
            began = time.monotonic()
            queue.enqueue(b"x" * 100).result(timeout=LIMIT_S)
            took.append(time.monotonic() - began)
    return statistics.median(took[WARM:])


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
    kinds = {"empty": args.jobs, "busy": args.busy, "lone": LONE}
    found: Found = {way: {kind: [] for kind in kinds} for way in ways}
    pythons = {way: environment(way.split()[0], folder)[0] for way in ways}
    before = os.getloadavg()[0]
    with servers.Server(servers.binaries()[0]) as server:
        done = Path(server.path).with_name("done")
        for number in range(args.rounds):
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                for kind, jobs in kinds.items():
                    if kind == "lone" and way not in LONE_WAYS:
                        continue
                    url = f"unix://{server.path}"
                    for _ in range(TRIES):
                        import_module("redis").Redis(unix_socket_path=server.path).flushall()
                        one = measure(way, pythons[way], url, kind, jobs, done)
                        if one is not None:
                            break
                    else:
                        raise SystemExit(f"{way} is too fast for {jobs} jobs: give more --jobs")
                    found[way][kind].append(one)
                    rate, cost = one
                    print(f"{way}, {kind}: {rate:.0f} jobs/s, {cost:.0f} us", flush=True)
    said = page(found, args, before, servers.binaries()[0].name)
    print(said)
    if args.write:
        PAGE.write_text(said, "utf-8")


# -- the page --------------------------------------------------------------------------------------

Found = dict[str, dict[str, list[tuple[float, float]]]]


def cell(values: list[float]) -> str:
    """Return the median, with the least and the most."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"


def goals(found: Found) -> list[str]:
    """Return the table of goals, by the medians of the differences within the rounds."""

    def rates(way: str, kind: str) -> list[float]:
        return [rate for rate, _ in found.get(way, {}).get(kind, [])]

    def more(kind: str) -> list[float]:
        pairs = zip(rates(LONE_WAYS[0], kind), rates(LONE_WAYS[1], kind), strict=True)
        return [1e6 / isolated - 1e6 / thread for thread, isolated in pairs]

    pairs = zip(
        rates("headrace isolated", "busy"), rates("headrace isolated, 25 jobs", "busy"), strict=True
    )
    less = [100 * (1 - recycled / kept) for kept, recycled in pairs]
    rows = [
        ("a lone job, over the same job in a thread, us", MORE_US, more("lone")),
        ("a job of a backlog, over the same job in a thread, us", MORE_US, more("empty")),
        ("replaced after 25 jobs: less of the rate of jobs of about 10 ms, %", LESS, less),
    ]
    lines = ["| goal | at most | measured | |", "|---|---|---|---|"]
    for name, most, values in rows:
        if values:
            met = "met" if statistics.median(values) <= most else "missed"
            lines.append(f"| {name} | {most:g} | {cell(values)} | {met} |")
    return lines


def page(found: Found, args: argparse.Namespace, before: float, server: str) -> str:
    """Return the page of results."""
    lines = [
        "| | empty jobs, jobs/s | processors, us/job | jobs of about 10 ms of Python, jobs/s | a lone job, us |",
        "|---|---|---|---|---|",
    ]
    for way, kinds in found.items():
        cells = [
            cell([rate for rate, _ in kinds["empty"]]),
            cell([cost for _, cost in kinds["empty"]]),
            cell([rate for rate, _ in kinds["busy"]]),
            cell([1e6 / rate for rate, _ in kinds["lone"]]) if kinds["lone"] else "",
        ]
        lines.append(f"| {way}: {WAYS[way]} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    return (
        "<!-- Written by bench/isolated.py. Do not edit. -->\n# Isolated handlers\n\n"
        f"{table}\n\n" + "\n".join(goals(found)) + "\n\nA thread that does nothing completes "
        "its jobs in large calls. A job that waits for a child is completed by a call of few jobs, as\n"
        "any that takes as long, and the difference of a backlog has both.\n\n"
        f"Medians of {args.rounds} interleaved rounds, in brackets the least and the most; "
        f"{args.jobs:,}, {args.busy:,} and {LONE:,} jobs of 100 bytes;\n{server} over a "
        f"unix socket without persistence, Python {sys.version.split()[0]}, {os.cpu_count()} cores, "
        f"a load of {before:.1f} before\nand {os.getloadavg()[0]:.1f} after. Repeat it with "
        "`python bench/isolated.py --write`.\n"
    )


if __name__ == "__main__":
    main()
