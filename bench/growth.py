"""What becomes of headrace and other queues as the backlog, the payloads, the idle workers and the queues grow.

python bench/growth.py --server valkey-9.1 --write

Each in its own environment, as in `compare.py`; what can't be had, or can't be filled in time, is left out. `--write`
puts the figures to `bench/results/growth.json`, where those of other axes stay, and the tables to
`docs/explanation/growth.md`; `--from` makes the tables of kept figures anew.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.compare import BULK, OURS, ROOT, Peer, arguments, conditions, environment, processor
from bench.many import commands
from tests.support.servers import Server, binaries

RAW = ROOT / "bench" / "results" / "growth.json"
PAGE = ROOT / "docs" / "explanation" / "growth.md"
FILL_S = 45.0  # what would take longer to fill is left out
FILL_AT_ONCE = 1_000_000  # jobs that one program sends: some make a list of all
SAMPLE = 20_000  # jobs of which it is told how long a fill would take
BUDGET = 20_000_000  # bytes of payloads that are sent in one measurement
REST_S = 10.0  # seconds for which idle workers are watched
START_S = 240.0  # seconds in which idle workers have to come to rest
STEADY_S = 5.0  # seconds in which workers at rest take as much processor time as in those before
MANY = (OURS, "headrace-threads", "rq", "dramatiq", "celery")  # a worker of theirs serves several queues
Cells = dict[str, str]  # of a value: what its cell says

TEXT = """<!-- Written by bench/growth.py from bench/results/growth.json. Do not edit. -->
# As it grows

What becomes of headrace, of other Python queues and of a bare loop of redis-py as there is more of something.
Each in an environment of its own, set up as in the [comparison](comparison.md), one after the other on one server.
Read along a row: what stays as it was does not mind.

{tables}

Each figure is of one measurement. Repeat them with `python bench/growth.py --write`.
A dash: filling it would take more than {fill:.0f} s; or a worker of it serves one queue; or it did not end in time,
or was refused, as more than 20,000 threads are.
Of payloads of a megabyte it is 20 jobs, which a worker that reads ahead has before it begins the first.
A worker that has threads for each of thousands of queues raises the load by itself.
"""
CONDITIONS = (
    "{server} over a unix socket without persistence, Python {python}, {cores} cores, a load of {before:.1f} before "
    "and {after:.1f} after, commit {commit}."
)


def rates(peer: Peer, client: Any, jobs: int, **more: int) -> str | None:
    """Send jobs one by one, and let a worker take as many of those that wait; `None` if it does not."""
    one = jobs / peer.end(peer.begin("one", jobs, **more))["seconds"]
    spent = processor(client)
    told = peer.end(peer.begin("work", jobs, **more))
    if told["lost"]:
        return None
    server = (processor(client) - spent) * 1e6 / told["ran"]
    return f"{one:,.0f} · {(jobs - 1) / told['seconds']:,.0f} · {server:,.1f}"


def waiting(peer: Peer, client: Any, jobs: int) -> str | None:
    """Fill the queue, then measure beside what waits."""
    verb = "bulk" if peer.name in BULK else "one"
    left, sample = jobs, min(jobs, SAMPLE if peer.name in BULK else SAMPLE // 20)
    while left > 0:
        seconds = peer.end(peer.begin(verb, sample))["seconds"]
        left -= sample
        if left * seconds / sample > FILL_S:
            return None
        sample = min(left, FILL_AT_ONCE)
    return rates(peer, client, 2000)


def payloads(peer: Peer, client: Any, size: int) -> str | None:
    """Measure with payloads of so many bytes."""
    return rates(peer, client, max(20, min(2000, BUDGET // size)), bytes=size)


def queues(peer: Peer, client: Any, number: int) -> str | None:
    """Measure one worker of so many queues."""
    return rates(peer, client, max(2000, 2 * number), queues=number) if peer.name in MANY else None


def tree(pid: int) -> list[int]:
    """The ids of a process and of all its children's."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            for told in Path(f"/proc/{one}/task").glob("*/children"):
                found += map(int, told.read_text("utf-8").split())
    return found


def spent_by(processes: Sequence[int]) -> float:
    """The seconds of processor time of processes."""
    ticks = 0
    for process in processes:
        with suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{process}/stat").read_text("utf-8").rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def workers(peer: Peer, client: Any, number: int) -> str | None:
    """Watch so many idle workers, each a process."""
    begun = [peer.begin("rest", 0) for _ in range(number)]
    processes: list[int] = []
    try:
        end, took = time.monotonic() + START_S, [float("inf"), 0.0]
        while client.info("clients")["connected_clients"] <= number or took[0] > 1.2 * took[1] + 0.02:
            if time.monotonic() > end:
                return None
            processes = [one for process in begun for one in tree(process.pid)]
            spent = spent_by(processes)
            time.sleep(STEADY_S)
            took = [took[1] or float("inf"), spent_by(processes) - spent]
        counted, server, mine, began = commands(client), processor(client), spent_by(processes), time.monotonic()
        time.sleep(REST_S)
        passed = time.monotonic() - began
        each_second = (commands(client) - counted) / passed
        servers, theirs = (processor(client) - server) / passed, (spent_by(processes) - mine) / passed
        return f"{each_second:,.0f} · {100 * servers:.2f} · {100 * theirs:.1f}"
    finally:
        for one in reversed(processes):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        for process in begun:
            process.kill()
            process.wait()


AXES: dict[str, tuple[str, list[int], Callable[[Peer, Any, int], str | None], str]] = {
    "waiting": (
        "Waiting jobs", [10_000, 1_000_000, 10_000_000], waiting,
        "One by one, jobs/s · worker, jobs/s · the server's microseconds for a job of the worker's",
    ),
    "payloads": (
        "Bytes of a payload", [100, 10_000, 1_000_000], payloads,
        "One by one, jobs/s · worker, jobs/s · the server's microseconds for a job of the worker's",
    ),
    "workers": (
        "Idle workers", [1, 10, 100], workers,
        "Commands/s of the server, with those of scripts · % of a core of the server · % of a core of all workers",
    ),
    "queues": (
        "Queues of one worker", [1, 100, 1000, 5000], queues,
        "One by one, by turns, jobs/s · worker, jobs/s · the server's microseconds for a job of the worker's",
    ),
}  # fmt: skip


def page(told: dict[str, Any]) -> str:
    """The page of the docs."""
    tables: list[str] = []
    for axis, found in told["axes"].items():
        title, _, _, what = AXES[axis]
        rows, (before, after) = found["rows"], found["load"]
        values = list(dict.fromkeys(value for cells in rows.values() for value in cells))
        lines = [f"## {title}", "", f"{what}.", "", f"| | {' | '.join(f'{int(v):,}' for v in values)} |"]
        lines.append("|---|" + "---|" * len(values))
        lines += [
            f"| {name} | {' | '.join(cells.get(v) or '–' for v in values)} |"
            for name, cells in rows.items()
            if any(cells.values())
        ]
        tables.append("\n".join([*lines, "", CONDITIONS.format(**found, before=before, after=after)]))
    return TEXT.format(tables="\n\n".join(tables), fill=FILL_S)


def grow(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all that can be had."""
    binary = next(b for b in binaries() if b.name == options.server)
    told: dict[str, Any] = {"axes": {}}
    with Server(binary, tcp=True) as server, redis.Redis(unix_socket_path=server.path) as client:
        for axis in options.axes.split(","):
            _, values, measure, _ = AXES[axis]
            rows: dict[str, dict[str, str | None]] = {}
            told["axes"][axis] = found = conditions(options.server) | {"rows": rows}
            for name in options.only.split(","):
                try:
                    peer = Peer(name, environment(name, options.environments)[0], server)
                except (subprocess.SubprocessError, OSError) as error:
                    print(f"{name} is skipped: {error}", file=sys.stderr)
                    continue
                for value in values:
                    client.flushall()
                    if value > options.most:
                        continue
                    try:
                        rows.setdefault(name, {})[str(value)] = cell = measure(peer, client, value)
                    except (subprocess.SubprocessError, IndexError, ValueError, ZeroDivisionError) as error:
                        cell = rows.setdefault(name, {})[str(value)] = None
                        print(f"{name} fails: {error!r}", file=sys.stderr)
                    print(axis, name, value, cell, file=sys.stderr, flush=True)
            client.flushall()
            found["load"].append(os.getloadavg()[0])
    return told


def main() -> None:
    """Measure, print, and write."""
    parser = arguments(__doc__)
    parser.add_argument("--axes", default=",".join(AXES), help="some of " + ", ".join(AXES))
    parser.add_argument("--most", type=int, default=10_000_000, help="the largest value of any axis")
    options = parser.parse_args()
    if unknown := set(options.axes.split(",")) - AXES.keys():
        parser.error(f"--axes: {', '.join(sorted(unknown))}: give some of {', '.join(AXES)}")
    told = json.loads(options.kept.read_text("utf-8")) if options.kept else grow(options)
    if options.write and RAW.exists():
        axes = json.loads(RAW.read_text("utf-8"))["axes"] | told["axes"]
        told = {"axes": {axis: axes[axis] for axis in AXES if axis in axes}}
    text = page(told)
    print(text)
    if options.write:
        RAW.parent.mkdir(exist_ok=True)
        RAW.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    if options.write or options.kept:
        PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
