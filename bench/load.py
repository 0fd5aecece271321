"""How long a job waits for its handler while one worker is idle, or at 10, 50 and 80 % of its
highest rate.

python bench/load.py --server valkey-9.1 --rounds 3 --seconds 4 --write

Of one queue and of a hundred: headrace beside the fastest other queues and a bare loop, in
interleaved rounds, each in its own environment as in `compare.py`. Jobs arrive at random moments
that are fixed before the first, and each job's wait is counted from its moment: no job is left out
because another was late. Producer and worker are a process each. `--write` keeps the figures in
`bench/results/load.json`, and writes the tables to `bench/results/load.md` and the plot to
`docs/pictures/load.svg`; `--from bench/results/load.json` makes these anew.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.compare import BULK, OURS, ROOT, Peer, arguments, conditions, environment
from bench.growth import spent_by, tree
from bench.peers import FULL, SETTLE_S, Board
from tests.support.servers import Server, binaries

RAW = ROOT / "bench" / "results" / "load.json"
PAGE = ROOT / "bench" / "results" / "load.md"
PICTURE = ROOT / "docs" / "pictures" / "load.svg"
# Of a number of queues: the peers of `compare.json` that have the most jobs a second or the least
# idle p50, and whose worker serves so many.
CONTENDERS = {
    1: ("redis-py", OURS, "headrace-threads", "tarsk-redis", "ardiq", "redis-work-queue"),
    100: ("redis-py", OURS, "headrace-threads", "tarsk-redis", "taskiq-redis", "dramatiq"),
}
IDLE = 50  # jobs a second for an idle worker
SHARES = (10, 50, 80)  # % of the highest rate of one worker
SAME = (500, 2000)  # jobs a second that are the same for all who can do a tenth more
TITLES = {"idle": f"idle, {IDLE} jobs/s"} | {f"{share} %": f"{share} %" for share in SHARES}
TITLES |= {f"{rate} jobs/s": f"{rate:,} jobs/s" for rate in SAME}
PROCESSES = ("producer", "worker", "server")
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
FULL_S = 2.5  # seconds in which the highest rate of a worker is measured
LEAST = 1000  # jobs of which p99.9 is told
START_S = 30.0  # seconds in which a worker has to run its first job
PRECEDENCE = -10  # a nice value, of sessions
STUCK_S = 3.0  # seconds without a job, after which the others are lost

TEXT = """<!-- Written by bench/load.py from bench/results/load.json. Do not edit. -->
# Latency under load

Milliseconds from the moment at which a job is to be enqueued to the first line of its handler: p50 · p99 · p99.9.

![p99 of headrace and other queues under load](../../docs/pictures/load.svg)

{tables}

Medians of {rounds} interleaved rounds of {seconds:g} seconds for each load.
{server} over a unix socket without persistence, Python {python}, {cores} cores, a load of {before:.1f} before and
{after:.1f} after, commit {commit}.{others}

- *Can do*: the jobs that one worker runs in a second beside its producer, which is at most 2,000 jobs ahead.
  It is measured in each round, before the loads, which are shares of it. The last columns have the same jobs/s for all
  that can do a tenth more.
- Jobs arrive at random moments (Poisson), fixed before the first. A wait is counted from the moment of a job,
  also if the producer is late with it. The producer sends all jobs that are due with one call if there is such a call.
- Producer and worker are a process each, set up as in the [comparison](compare.md); the workers of headrace set the
  garbage collector as `headrace work` does. The first half second of each load
  is left out; p99.9 is told of {least:,} jobs and more.
- *Late*: the p99 of the milliseconds by which the producer is behind at 50 %, which the waits include.
- *Cores*: processor time of producer, worker and server at 50 %, each in percent of one core. If their sum comes near
  {cores} × 100, jobs wait for a processor. At its highest rate a worker leases more jobs a call, which cost less each.
- The peers are the fastest of the comparison whose worker serves so many queues.
{missed}
Repeat it with `python bench/load.py --write`.
"""
Figures = dict[str, float]


def take_precedence(server: Server) -> None:
    """Let the scheduler prefer the bench and its server to other sessions, if this user may do
    so."""
    for pid in ("self", server.pid):
        with suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text(str(PRECEDENCE), "utf-8")


def percentile(waits: list[float], share: float) -> float:
    """Return the wait that so large a part of the sorted waits stays below."""
    return waits[min(len(waits) - 1, math.ceil(share * len(waits)) - 1)]


class Bench:
    """One worker of a peer, and the state that its producers and the bench share."""

    def __init__(self, peer: Peer, queues: int, seconds: float, server: int) -> None:
        self.peer, self.queues, self._seconds = peer, queues, seconds
        self._server, self._worker = server, 0  # ids of processes
        self._file = NamedTemporaryFile()  # noqa: SIM115 - as long as the worker
        self._file.truncate(8 * (FULL + 2))
        self.board = Board(self._file.name)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Run the worker until its first job."""
        worker = self.peer.begin("work", 0, queues=self.queues, board=self._file.name)
        self._worker = worker.pid
        try:
            self._send(0.5, IDLE, START_S)
            yield
        finally:
            for pid in tree(worker.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            worker.communicate()
            self._file.close()

    def _send(
        self, seconds: float, rate: float, patience: float = STUCK_S
    ) -> tuple[dict[str, Any], list[tuple[float, int]]]:
        """Send jobs for so long. Once all have run, return the producer's figures and the ended
        jobs over time."""
        self.board.clear()
        verb, seen = "bulk" if self.peer.name in BULK else "one", list[tuple[float, int]]()
        producer = self.peer.begin(
            verb, 0, queues=self.queues, board=self._file.name, seconds=seconds, rate=rate
        )
        while producer.poll() is None:
            seen.append((time.perf_counter(), self.board.ran))
            time.sleep(0.02)
        told: dict[str, Any] = self.peer.end(producer)
        ran, since = self.board.ran, time.perf_counter()
        while ran < told["sent"] and time.perf_counter() - since < patience:
            time.sleep(0.005)
            if self.board.ran > ran:
                ran, since = self.board.ran, time.perf_counter()
        return told, seen

    def capacity(self) -> float:
        """Measure how many jobs a second the worker can do beside its producer."""
        _, seen = self._send(FULL_S, 0)
        some = [(at, ran) for at, ran in seen if ran]
        some = [one for one in some if one[0] > some[0][0] + SETTLE_S / 2]
        (began, first), (ended, last) = some[0], some[-1]
        return (last - first) / (ended - began)

    def load(self, rate: float) -> Figures:
        """Measure the waits of so many jobs a second."""
        before = self._spent()
        producer, _ = self._send(self._seconds + SETTLE_S, rate)
        spent = [now - then for now, then in zip(self._spent(), before, strict=True)]
        sent = producer["sent"]
        waits = sorted(self.board.waits(int(rate * SETTLE_S), sent))
        told = {"rate": rate, "jobs": len(waits), "late": producer["late"]}
        told |= {"lost": sent - self.board.ran, "doubled": self.board.doubled}
        shares = zip(PROCESSES, [producer["processor"], *spent], strict=True)
        told |= {name: 100 * seconds / (self._seconds + SETTLE_S) for name, seconds in shares}
        return told | {name: percentile(waits, share) for name, share in QUANTILES.items()}

    def _spent(self) -> list[float]:
        """Return the seconds of processor time of the worker with its children, and of the
        server."""
        return [spent_by(tree(self._worker)), spent_by([self._server])]


def measure(peer: Peer, queues: int, seconds: float, server: int) -> dict[str, Any]:
    """Measure a peer once, beside the server with this process id."""
    bench = Bench(peer, queues, seconds, server)
    with bench.working():
        capacity = bench.capacity()
        rates: dict[str, float] = {"idle": IDLE} | {
            f"{share} %": capacity * share / 100 for share in SHARES
        }
        rates |= {f"{rate} jobs/s": rate for rate in SAME if rate < 0.9 * capacity}
        return {"capacity": capacity} | {load: bench.load(rate) for load, rate in rates.items()}


# -- the page --------------------------------------------------------------------------------------


def median(rounds: list[dict[str, Any]], load: str, name: str) -> float:
    """Return the median of a figure of a load in the rounds that have the load."""
    return statistics.median(one[load][name] for one in rounds if load in one)


def cell(rounds: list[dict[str, Any]], load: str) -> str:
    """Return a cell of the table."""
    if not any(load in one for one in rounds):
        return "–"
    names = ["p50", "p99"] + ["p99.9"] * (median(rounds, load, "jobs") >= LEAST)
    return " · ".join(f"{median(rounds, load, name):,.2f}" for name in names)


def table(number: str, peers: dict[str, Any]) -> str:
    """Return the table of a number of queues."""
    titles = [
        "can do, jobs/s",
        *TITLES.values(),
        "p99 at 50 %, of idle",
        "late, ms",
        "cores, %",
        "lost, twice",
    ]
    lines = [f"## {'One queue' if number == '1' else f'{number} queues'}", ""]
    lines += [f"| | {' | '.join(titles)} |", "|---|" + "---|" * len(titles)]
    for name, peer in peers.items():
        rounds = peer["rounds"]
        capacity = statistics.median(one["capacity"] for one in rounds)
        ratio = statistics.median(one["50 %"]["p99"] / one["idle"]["p99"] for one in rounds)
        some = [one[load] for one in rounds for load in TITLES if load in one]
        cells = [f"{capacity:,.0f}", *(cell(rounds, load) for load in TITLES), f"{ratio:.1f}"]
        cells += [f"{median(rounds, '50 %', 'late'):,.2f}"]
        cells += [" · ".join(f"{median(rounds, '50 %', name):.0f}" for name in PROCESSES)]
        cells += [", ".join(f"{sum(one[key] for one in some):.0f}" for key in ("lost", "doubled"))]
        lines.append(f"| {name} {peer['version']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(told: dict[str, Any]) -> str:
    return TEXT.format(
        **told,
        tables="\n\n".join(table(number, peers) for number, peers in told["queues"].items()),
        before=told["load"][0],
        after=told["load"][1],
        others=" Other programs ran on the machine at the time, with less precedence."
        if told["busy"]
        else "",
        least=LEAST,
        missed="".join(f"- {name} was left out: {why}.\n" for name, why in told["skipped"].items()),
    )


def picture(told: dict[str, Any]) -> str:
    """Return the plot of p99 over the loads, with a panel for each number of queues and a line for
    each peer. The scale is logarithmic.
    """
    wide, high, left, top = 470, 330, 50, 40
    loads = [load for load in TITLES if not load.endswith("jobs/s")]
    style = "text{fill:#333}.g{stroke:#ccc}.o{stroke:#0b7285}.p{stroke:#adb5bd}path{fill:none;stroke-width:2}"
    dark = "@media(prefers-color-scheme:dark){text{fill:#ddd}.g{stroke:#444}.o{stroke:#3bc9db}.p{stroke:#6c757d}}"
    size = f'viewBox="0 0 {2 * wide} {high}" font-size="13" font-family="system-ui, sans-serif"'
    label = 'role="img" aria-label="p99 of headrace and other queues under load"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>',
        f"<style>{style}{dark}</style>",
    ]
    lines = {
        number: {
            name: [median(peer["rounds"], load, "p99") for load in loads]
            for name, peer in peers.items()
        }
        for number, peers in told["queues"].items()
    }
    values = [value for peers in lines.values() for line in peers.values() for value in line]
    low, most = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def y(value: float) -> float:
        return high - 40 - (high - 40 - top) * (math.log10(value) - low) / (most - low)

    for panel, (number, peers) in enumerate(lines.items()):
        start = panel * wide
        title = "One queue" if number == "1" else f"{number} queues"
        out.append(
            f'<text x="{start + 10}" y="20" font-weight="600">{title}: p99, ms (less is better, logarithmic)</text>'
        )
        for power in range(low, most + 1):
            at = y(10.0**power)
            out += [
                f'<path class="g" style="stroke-width:1" d="M{start + left} {at:.0f}h{wide - left - 130}"/>',
                f'<text x="{start + left - 6}" y="{at + 4:.0f}" text-anchor="end">{10.0**power:g}</text>',
            ]
        step = (wide - left - 160) / (len(loads) - 1)
        for at, load in enumerate(loads):
            x = start + left + 15 + at * step
            out.append(f'<text x="{x:.0f}" y="{high - 18}" text-anchor="middle">{load}</text>')
        lowest = float(high)
        for name, line in sorted(peers.items(), key=lambda pair: pair[1][-1]):
            points = " ".join(
                f"{start + left + 15 + at * step:.0f} {y(value):.1f}"
                for at, value in enumerate(line)
            )
            lowest = min(y(line[-1]), lowest - 15)  # names do not cover each other
            out += [
                f'<path class="{"o" if name.startswith(OURS) else "p"}" d="M{points}"/>',
                f'<text x="{start + wide - 138}" y="{lowest + 4:.0f}">{name}</text>',
            ]
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    """Measure, print, and write."""
    # latencies are measured as `headrace work` sets the collector
    os.environ["BENCH_COLLECTOR"] = "1"
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    parser.add_argument("--queues", default=",".join(map(str, CONTENDERS)), help="some of 1, 100")
    parser.add_argument(
        "--busy", action="store_true", help="take precedence over other programs, and say so"
    )
    options = parser.parse_args()
    told = json.loads(options.kept.read_text("utf-8")) if options.kept else under_load(options)
    text = page(told)
    print(text)
    if options.write:
        RAW.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    if options.write or options.kept:
        PAGE.write_text(text, "utf-8")
        PICTURE.write_text(picture(told), "utf-8")


def under_load(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all that are available in rounds, each time in another order."""
    binary = next(b for b in binaries() if b.name == options.server)
    told = conditions(options.server) | {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "busy": options.busy,
    }
    told |= {"queues": {}, "skipped": {}}
    with Server(binary, tcp=True) as server, redis.Redis(unix_socket_path=server.path) as client:
        peers: dict[str, Peer] = {}
        if options.busy:
            take_precedence(server)
        for number in map(int, options.queues.split(",")):
            told["queues"][str(number)] = {}
            for name in [name for name in CONTENDERS[number] if name in options.only.split(",")]:
                try:
                    python, its = environment(name, options.environments)
                except (subprocess.SubprocessError, OSError) as error:
                    print(f"{name} is skipped: {error}", file=sys.stderr)
                    told["skipped"][name] = "its environment could not be made"
                    continue
                peers[name] = Peer(name, python, server)
                told["queues"][str(number)][name] = {"version": its, "rounds": []}
        for count in range(options.rounds):
            for number, found in told["queues"].items():
                names = list(found)
                for name in names[count % len(names) :] + names[: count % len(names)]:
                    client.flushall()
                    try:
                        figures = measure(peers[name], int(number), options.seconds, server.pid)
                    except (
                        subprocess.SubprocessError,
                        IndexError,
                        ValueError,
                        ZeroDivisionError,
                    ) as error:
                        print(f"{name} fails: {error!r}", file=sys.stderr, flush=True)
                        continue
                    print(number, name, json.dumps(figures), file=sys.stderr, flush=True)
                    found[name]["rounds"].append(figures)
    for number, found in told["queues"].items():
        for name in [name for name, peer in found.items() if not peer["rounds"]]:
            told["skipped"][f"{name} with {number}"] = "it did not run"
            del found[name]
    told["load"].append(os.getloadavg()[0])
    return told


if __name__ == "__main__":
    main()
