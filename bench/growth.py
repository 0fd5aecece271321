"""The behaviour of headrace and other queues as the backlog, the payloads, the idle workers and the
queues grow.

python bench/growth.py --server valkey-9.1 --write

Each in its own environment, as in `compare.py`; what can't be had, or can't be filled in time, is
left out, with a line that says so. `--write` puts the figures of an axis, once it is measured, to
`bench/results/growth.json`, where those of other axes stay, and the tables to
`bench/results/growth.md`; `--from` makes the tables of kept figures anew.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from attrs import frozen

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.compare import BULK, OURS, ROOT, Peer, arguments, conditions, environment, processor
from bench.many import commands
from tests.support.servers import Server, binaries

RAW = ROOT / "bench" / "results" / "growth.json"
PAGE = ROOT / "bench" / "results" / "growth.md"
FILL_S = 90.0  # what would take longer to fill is left out
FILL_AT_ONCE = 1_000_000  # jobs that one program sends, of which it holds 100,000 at most
SAMPLE = 20_000  # jobs of which it is told how long a fill would take
BUDGET = 20_000_000  # bytes of payloads that are sent in one measurement
WORK_S = 80.0  # seconds in which a worker has to run its jobs
SPAN_S = 5.0  # seconds for which idle workers are watched, again and again
START_S = 120.0  # seconds in which idle workers have to come to rest
THREADS = 20_000  # more are refused where this was first measured
# a worker of theirs serves several queues
MANY = (OURS, "headrace-threads", "rq", "dramatiq", "celery")
NEW = ("redis-py", OURS, "rq", "dramatiq", "celery")  # `peers.py` sends to several queues of theirs

TEXT = """<!-- Written by bench/growth.py from bench/results/growth.json. Do not edit. -->
# As it grows

headrace, other Python queues and a bare loop of redis-py as there is more of something.
Each in an environment of its own, set up as in the [comparison](compare.md), one after the other on one server.
Read along a row: a figure that stays as it was does not depend on the number.

{tables}

Each figure is of one measurement. Repeat them with `python bench/growth.py --write`, or one axis with `--axes`.
Workers are idle once two spans of {span:.0f} s in turn are alike in commands, connections and processor time; the
figures are of these two.
Of payloads of a megabyte it is 20 jobs, which a worker that reads ahead has before it begins the first.
A worker that has threads for each of a thousand queues raises the load by itself.
"""
CONDITIONS = (
    "{server} over a unix socket without persistence, Python {python}, {cores} cores, a load of {before:.1f} before "
    "and {after:.1f} after, commit {commit}."
)


class LeftOut(Exception):
    """A peer that is not measured, with the reason."""


def rates(peer: Peer, client: Any, jobs: int, **more: int) -> str:
    """Send jobs one by one, and let a worker take as many waiting ones."""
    one = jobs / peer.end(peer.begin("one", jobs, **more), WORK_S)["seconds"]
    spent = processor(client)
    try:
        told = peer.end(peer.begin("work", jobs, **more), WORK_S)
    except subprocess.TimeoutExpired as error:
        raise LeftOut(f"its worker takes more than {WORK_S:.0f} s") from error
    if told["lost"]:
        raise LeftOut("its worker did not run all jobs")
    server = (processor(client) - spent) * 1e6 / told["ran"]
    return f"{one:,.0f} · {(told['timed'] - 1) / told['seconds']:,.0f} · {server:,.1f}"


def waiting(peer: Peer, client: Any, jobs: int) -> str:
    """Fill the queue, then measure beside the waiting jobs."""
    verb = "bulk" if peer.name in BULK else "one"
    left, sample, took = jobs, min(jobs, SAMPLE if peer.name in BULK else SAMPLE // 20), 0.0
    while left > 0:
        seconds = peer.end(peer.begin(verb, sample))["seconds"]
        left, took = left - sample, took + seconds
        if took + left * seconds / sample > FILL_S:
            raise LeftOut(f"filling its queue takes more than {FILL_S:.0f} s")
        sample = min(left, FILL_AT_ONCE)
    return rates(peer, client, 2000)


def payloads(peer: Peer, client: Any, size: int) -> str:
    """Measure with payloads of so many bytes."""
    return rates(peer, client, max(20, min(2000, BUDGET // size)), bytes=size)


def queues(peer: Peer, client: Any, number: int) -> str:
    """Measure one worker of so many queues."""
    if peer.name not in MANY:
        raise LeftOut("a worker of it serves one queue")
    if peer.name == "headrace-threads" and 8 * number > THREADS:
        raise LeftOut(f"it would have {8 * number:,} threads")
    return rates(peer, client, max(2000, 2 * number), queues=number)


def new(peer: Peer, client: Any, number: int) -> str:
    """Send the first job to each of so many queues, and as many to one."""
    if peer.name not in NEW:
        raise LeftOut("the bench sends to one queue of it")
    spent = processor(client)
    first = number / peer.end(peer.begin("one", number, queues=number), WORK_S)["seconds"]
    server = (processor(client) - spent) * 1e6 / number
    client.flushall()
    one = number / peer.end(peer.begin("one", number), WORK_S)["seconds"]
    return f"{first:,.0f} · {one:,.0f} · {server:,.1f}"


def tree(pid: int) -> list[int]:
    """Return the ids of a process and of all its children."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            for told in Path(f"/proc/{one}/task").glob("*/children"):
                found += map(int, told.read_text("utf-8").split())
    return found


def spent_by(processes: Sequence[int]) -> float:
    """Return the seconds of processor time of processes."""
    ticks = 0
    for process in processes:
        with suppress(OSError):
            ticks += sum(
                map(
                    int,
                    Path(f"/proc/{process}/stat")
                    .read_text("utf-8")
                    .rsplit(")", 1)[1]
                    .split()[11:13],
                )
            )
    return ticks / os.sysconf("SC_CLK_TCK")


@frozen
class Span:
    """The costs of idle workers in each second of a short time."""

    processes: list[int]
    connections: int
    commands: float
    server: float
    workers: float

    def alike(self, other: Span) -> bool:
        """Tell whether another span cost about as much by as many events. An event each ten seconds
        is in one of two spans.
        """

        def near(one: float, another: float, least: float) -> bool:
            return abs(one - another) <= max(one, another) / 3 + least

        return (
            self.processes == other.processes
            and abs(self.connections - other.connections) <= 0.02 * self.connections
            and near(self.commands, other.commands, 1.0)
            and near(self.workers, other.workers, 0.004)
        )


def spans(client: Any, root: int) -> Iterator[Span]:
    """Watch the server and the processes below one, until idle workers rest."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        processes = tree(root)
        counted, server, mine, began = (
            commands(client),
            processor(client),
            spent_by(processes),
            time.monotonic(),
        )
        time.sleep(SPAN_S)
        passed = time.monotonic() - began
        yield Span(
            processes, client.info("clients")["connected_clients"] - 1, (commands(client) - counted) / passed,
            (processor(client) - server) / passed, (spent_by(processes) - mine) / passed,
        )  # fmt: skip


@contextmanager
def resting(peer: Peer, number: int) -> Iterator[subprocess.Popen[str]]:
    """Run so many workers, each a process, and end them."""
    with peer.begin("rest", number) as begun:
        try:
            yield begun
        finally:
            for one in tree(begun.pid)[:0:-1]:
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # it waits for them
                begun.wait(10.0)
            begun.kill()


def workers(peer: Peer, client: Any, number: int) -> str:
    """Watch so many idle workers, each a process."""
    last: Span | None = None
    with resting(peer, number) as begun:
        for span in spans(client, begun.pid):
            if (
                last
                and min(len(span.processes) - 1, span.connections) >= number
                and span.alike(last)
            ):
                called = (last.commands + span.commands) / 2
                servers, theirs = (
                    50 * (last.server + span.server),
                    50 * (last.workers + span.workers),
                )
                return f"{called:,.0f} · {servers:.2f} · {theirs:.1f} · {span.connections:,}"
            last = span
    raise LeftOut(f"its workers did not come to rest in {START_S:.0f} s")


AXES: dict[str, tuple[str, list[int], Callable[[Peer, Any, int], str], str]] = {
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
        "Commands/s, with those of scripts · % of a core of the server · % of a core of all workers · connections",
    ),
    "queues": (
        "Queues of one worker", [1, 100, 1000, 5000], queues,
        "One by one, by turns, jobs/s · worker, jobs/s · the server's microseconds for a job of the worker's",
    ),
    "new": (
        "New queues", [100, 1000, 5000], new,
        "First jobs of each, jobs/s · as many of one queue, jobs/s · the server's microseconds for a first job",
    ),
}  # fmt: skip


def page(told: dict[str, Any]) -> str:
    tables: list[str] = []
    for axis, found in told["axes"].items():
        title, _, _, what = AXES[axis]
        rows, (before, after) = found["rows"], found["load"]
        values = sorted({value for cells in rows.values() for value in cells}, key=int)
        lines = [
            f"## {title}",
            "",
            f"{what}.",
            "",
            f"| | {' | '.join(f'{int(v):,}' for v in values)} |",
        ]
        lines.append("|---|" + "---|" * len(values))
        lines += [
            f"| {name} | {' | '.join(cells.get(v) or '–' for v in values)} |"
            for name, cells in rows.items()
            if any(cells.values())
        ]
        lines += [""] * bool(found["left_out"])
        for why, names in found["left_out"].items():
            at: dict[str, list[str]] = {}  # of values: those that were left out there
            for name, which in names.items():
                at.setdefault(
                    "" if len(which) == len(values) else f" ({', '.join(which)})", []
                ).append(name)
            lines.append(
                f"- Left out, as {why}: {'; '.join(', '.join(some) + which for which, some in at.items())}."
            )
        tables.append(
            "\n".join([*lines, "", CONDITIONS.format(**found, before=before, after=after)])
        )
    return TEXT.format(tables="\n\n".join(tables), span=SPAN_S)


def measure(
    axis: str, peers: Sequence[Peer], client: Any, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure all available figures of one axis."""
    _, values, act, _ = AXES[axis]
    rows: dict[str, dict[str, str | None]] = {}
    left_out: dict[str, dict[str, list[str]]] = {}  # of a reason: of a name: values
    began, found = time.monotonic(), conditions(options.server)
    for peer in peers:
        for value in values:
            if value > options.most:
                continue
            client.flushall()
            cell, since = None, time.monotonic()
            try:
                cell = act(peer, client, value)
            except (
                LeftOut,
                subprocess.SubprocessError,
                IndexError,
                ValueError,
                ZeroDivisionError,
            ) as error:
                why = str(error) if isinstance(error, LeftOut) else "it fails"
                left_out.setdefault(why, {}).setdefault(peer.name, []).append(f"{value:,}")
                print(f"{peer.name} is left out: {error!r}", file=sys.stderr)
            rows.setdefault(peer.name, {})[str(value)] = cell
            print(
                axis,
                peer.name,
                value,
                cell,
                f"{time.monotonic() - since:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    client.flushall()
    found["load"].append(os.getloadavg()[0])
    took = round(time.monotonic() - began)
    print(f"{axis}: {took} s", file=sys.stderr, flush=True)
    return found | {"seconds": took, "rows": rows, "left_out": left_out}


def grow(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all available figures, and keep each axis if that is asked for."""
    binary = next(b for b in binaries() if b.name == options.server)
    told: dict[str, Any] = {"axes": {}}
    # a hundred idle workers of a peer's have ten thousand connections
    room = ["--maxclients", "20000"]
    with (
        Server(binary, tcp=True, extra=room) as server,
        redis.Redis(unix_socket_path=server.path) as client,
    ):
        peers: list[Peer] = []
        for name in options.only.split(","):
            try:
                peers.append(Peer(name, environment(name, options.environments)[0], server))
            except (subprocess.SubprocessError, OSError) as error:
                print(f"{name} is skipped: {error}", file=sys.stderr)
        for axis in options.axes.split(","):
            told["axes"][axis] = measure(axis, peers, client, options)
            if options.write:
                told = keep(told)
    return told


def keep(told: dict[str, Any]) -> dict[str, Any]:
    """Write the figures of some axes and the page. Return them with the earlier figures of the
    other axes."""
    axes = (json.loads(RAW.read_text("utf-8"))["axes"] if RAW.exists() else {}) | told["axes"]
    told = {"axes": {axis: axes[axis] for axis in AXES if axis in axes}}
    RAW.parent.mkdir(exist_ok=True)
    RAW.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    PAGE.write_text(page(told), "utf-8")
    return told


def main() -> None:
    """Measure, print, and write."""
    parser = arguments(__doc__)
    parser.add_argument("--axes", default=",".join(AXES), help="some of " + ", ".join(AXES))
    parser.add_argument(
        "--most", type=int, default=10_000_000, help="the largest value of any axis"
    )
    options = parser.parse_args()
    if unknown := set(options.axes.split(",")) - AXES.keys():
        parser.error(f"--axes: {', '.join(sorted(unknown))}: give some of {', '.join(AXES)}")
    told = json.loads(options.kept.read_text("utf-8")) if options.kept else grow(options)
    if options.kept:
        PAGE.write_text(page(told), "utf-8")
    print(page(told))


if __name__ == "__main__":
    main()
