"""The wait of a quiet tenant beside a flood, with and without `fair=`. Weights and the cost of
fairness are measured too.

python bench/fair.py --server valkey-9.1 --rounds 3 --seconds 10 --write [--rows flood,keys]
[--before CHECKOUT]

A hundred tenants send a job a second each, at moments that are fixed in advance and from which
their waits are counted. Another program adds a flood of one tenant after the first second. Worker,
flood and quiet tenants are a process each. `--write` keeps the figures of the rows in
`bench/results/fair.json`, and writes the tables to `bench/results/fair.md` and the plot to
`docs/pictures/fair.svg`; `--from bench/results/fair.json` makes these anew. With `--before` jobs of
plain queues are also enqueued, leased and completed by turns with another checkout, as in
`steps.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import redis
from kinds import metered
from steps import compare

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.compare import ROOT, conditions, processor
from bench.load import percentile, take_precedence
from bench.many import Serving
from headrace import AsyncWorker, Job, NewJob, Queue, Worker
from tests.support.servers import Server, binaries

RAW = ROOT / "bench" / "results" / "fair.json"
PAGE = ROOT / "bench" / "results" / "fair.md"
PICTURE = ROOT / "docs" / "pictures" / "fair.svg"
NAME = "fair"
TENANTS = 100  # quiet ones, of which each sends a job a second
FLOOD = 100_000  # jobs of one tenant
KEYS = 1000  # of this tenant, where there are two levels
Terms = Mapping[str, Any]
Figures = dict[str, Any]
FLOOD_AFTER_S = 1.0
EVERY = TENANTS // 10  # timed jobs, of a tenth of a second, of which the plot has the longest wait
HANDLERS, TOOK_S = 20, 0.005  # at once, and the seconds of each
DRAIN_S = 90.0  # seconds after the last job in which all are begun, or are counted as not begun
LEASES = 3000  # of which the shares are told
WEIGHTS = {"gold": 3.0, "silver": 2.0, "tin": 1.0}
CALLS = (1, 10, 100)  # jobs of one call of a lease by hand
TIMES = 10  # that a call is measured
LINED = 6000  # jobs that wait in lines beside it
LOOKED_AT = 250  # jobs that a lease puts into lines, beside the jobs that it leases
BACKLOG = 20_000  # jobs that wait in lines beside calls whose cost is compared with a plain queue's
# jobs of a call: how many calls, and the goal in us a job
SIZES = {100: (40, 4.0), 20: (100, 8.0), 1: (500, 80.0)}
BACKLOGS: dict[str, tuple[Terms, int]] = {  # ways, each with its terms and the number of values
    "plain": ({}, 1),
    "`fair`, 1 value": ({"fair": "tenant"}, 1),
    "`fair`, 100 values": ({"fair": "tenant"}, 100),
    "`fair`, 10,000 values": ({"fair": "tenant"}, 10_000),
    "`fair='org/user'`, 100 values": ({"fair": "org/user"}, 100),
}
# on which these calls are measured; the newest Redis, if there is no 7.0
SERVERS = ("valkey-9.1", "redis-7.0")
LATENCIES = {  # of a row: seconds of a handler, whether it runs in a thread
    f"{took * 1e3:g} ms, {colour}": (took, colour == "threads")
    for took in (0.005, 0.030)
    for colour in ("asyncio", "threads")
}
# jobs of a round, of handlers that take `TOOK_S` and of handlers that only count
SLOW, QUICK = 6000, 20_000
PAYLOAD = b"-".ljust(100, b"x")  # of a job that is only counted
# of a row: ways, each with its terms and the jobs of the flood
FLOODED: dict[str, dict[str, tuple[Terms, int]]] = {
    "flood": {
        "no flood": ({"fair": "tenant"}, 0),
        "flood, `fair='tenant'`": ({"fair": "tenant"}, FLOOD),
        "flood, without `fair`": ({}, FLOOD),
    },
    "keys": {
        "no flood": ({"fair": "org/user"}, 0),
        "flood, `fair='org/user'`": ({"fair": "org/user"}, FLOOD),
        "flood, `fair='user'`": ({"fair": "user"}, FLOOD),
    },
}
TITLES = {
    "flood": f"{TENANTS} quiet tenants beside one with {FLOOD:,} jobs",
    "keys": f"{TENANTS} quiet organisations beside one with {FLOOD:,} jobs of {KEYS:,} users",
}

TEXT = """<!-- Written by bench/fair.py from bench/results/fair.json. Do not edit. -->
# Fairness

![The wait of a quiet tenant beside a flood, with and without fair](../../docs/pictures/fair.svg)

{tables}

{handlers} handlers at once of {took:g} ms each, under {colour}; a quiet tenant sends a job a second.
*Dwell*: from the moment at which a job is to be enqueued to the first line of its handler, after the flood began.
A job that was not begun {drain:.0f} seconds after the last one was sent counts as if it had begun then.
Medians of interleaved rounds, in brackets the least and the most.

Repeat it with `python bench/fair.py --write`, or some rows with `--rows`.
"""
CONDITIONS = (
    "{rounds} rounds, {seconds:g} seconds each; {server} over a unix socket without persistence, Python {python}, "
    "{cores} cores, a load of {before:.1f} before and {after:.1f} after, commit {commit}.{others}"
)
CROWDED = " The machine had more to do than it has cores: these figures are too high."
OTHERS = " Other programs ran on the machine at the time, with less precedence."


# -- the worker, the flood -------------------------------------------------------------------------


class Seen:
    """The jobs that a worker has begun."""

    def __init__(self) -> None:
        self.ran, self.first, self.last = 0, 0.0, 0.0
        self.order: list[str] = []  # tenants, of the first leases
        # numbers of timed jobs, and their ms, since the last answer
        self.waits: list[tuple[int, float]] = []

    def begin(self, job: Job) -> None:
        """Record a job, as the first line of each handler."""
        now = time.time()
        self.first, self.last = self.first or now, now
        self.ran += 1
        if len(self.order) < LEASES:
            self.order.append(job.headers.get("tenant", ""))
        if not job.payload.startswith(b"-"):
            number, moment, _ = job.payload.split(b":", 2)
            self.waits.append((int(number), (now - float(moment)) * 1e3))

    def tell(self) -> None:
        """Print the jobs that were seen, and the waits since the last time."""
        waits, self.waits = self.waits, []
        told = {
            "ran": self.ran,
            "seconds": self.last - self.first,
            "order": Counter(self.order),
            "waits": waits,
        }
        print(json.dumps(told), flush=True)


async def serve(url: str, spec: Mapping[str, Any]) -> None:
    """Work until the input ends, and answer each line of it."""
    worker, seen, took, spread = AsyncWorker(url=url), Seen(), spec["took"], spec["spread"]

    @worker.handler(NAME, concurrency=spec["handlers"], **spec["terms"])
    async def handle(job: Job) -> None:
        seen.begin(job)
        if took:
            await asyncio.sleep(took * random.uniform(1 - spread, 1 + spread))

    loop = asyncio.get_running_loop()
    async with worker:
        while await loop.run_in_executor(None, sys.stdin.readline):
            seen.tell()


def serve_threads(url: str, spec: Mapping[str, Any]) -> None:
    """Do the same as `serve` with threads."""
    worker, seen, took, spread = Worker(url=url), Seen(), spec["took"], spec["spread"]

    @worker.handler(NAME, concurrency=spec["handlers"], **spec["terms"])
    def handle(job: Job) -> None:
        seen.begin(job)
        if took:
            time.sleep(took * random.uniform(1 - spread, 1 + spread))

    with worker:
        while sys.stdin.readline():
            seen.tell()


def flood(url: str, jobs: int) -> None:
    """Add the jobs of the flood, once there is a line."""
    with Queue(NAME, url=url) as queue:
        print(queue.counts().waiting, flush=True)
        sys.stdin.readline()
        for at in range(0, jobs, 1000):
            names = [
                {"tenant": "flood", "org": "flood", "user": f"key-{n % KEYS}"}
                for n in range(at, at + 1000)
            ]
            queue.enqueue_many([NewJob(PAYLOAD, headers=headers) for headers in names])


def jobs_of(numbers: range, names: list[str]) -> list[NewJob[bytes]]:
    """Make jobs of tenants by turns. Each tenant is also an organisation and its only user."""
    some = [names[number % len(names)] for number in numbers]
    return [NewJob(PAYLOAD, headers={"tenant": name, "org": name, "user": name}) for name in some]


class Working(Serving):
    """A worker in its own process, with the waits that it has reported."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(process)
        self.waits: dict[int, float] = {}

    def ask(self) -> dict[str, Any]:
        told = super().ask()
        self.waits |= dict(told["waits"])
        return told


class Bench:
    """A server, and the programs that use it."""

    def __init__(self, server: Server, client: Any, *, threads: bool, spread: float = 0.0) -> None:
        self.server, self.client, self._threads, self._spread = server, client, threads, spread

    def _begin(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--url", self.server.url, *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @contextmanager
    def working(
        self, terms: Terms, handlers: int, took: float, *, threads: bool = False
    ) -> Iterator[Working]:
        """Run a worker."""
        spec = json.dumps(
            {"terms": terms, "handlers": handlers, "took": took, "spread": self._spread}
        )
        with self._begin("--serve", spec, *["--threads"] * (threads or self._threads)) as process:
            try:
                yield Working(process)
            finally:
                process.kill()  # its leases are of no use to anyone

    # -- rows --------------------------------------------------------------------------------------

    def quiet(
        self,
        terms: Terms,
        jobs: int,
        seconds: float,
        took: float = TOOK_S,
        *,
        threads: bool = False,
    ) -> Figures:
        """Let quiet tenants send for so long beside a flood of so many jobs."""
        self.client.flushall()
        moments = [number / TENANTS for number in range(int(seconds * TENANTS))]
        working = self.working(terms, HANDLERS, took, threads=threads)
        with Queue(NAME, url=self.server.url) as queue, working as worker:
            for _ in range(HANDLERS):
                queue.enqueue(PAYLOAD, headers={"tenant": "first", "org": "first", "user": "first"})
            assert worker.until(HANDLERS)
            with self._begin("--flood", str(jobs)) as other:
                assert other.stdin
                assert other.stdout
                assert other.stdout.readline()  # it is ready
                start, flooded, late = time.time() + 0.5, not jobs, list[float]()
                before = processor(self.client)
                for number, moment in enumerate(moments):
                    time.sleep(max(0.0, start + moment - time.time()))
                    if moment >= FLOOD_AFTER_S and not flooded:
                        other.stdin.write("now\n")
                        other.stdin.flush()
                        flooded = True
                    late.append((time.time() - start - moment) * 1e3)
                    who = f"tenant-{number % TENANTS}"
                    payload = f"{number}:{start + moment:.6f}:".encode().ljust(100, b"x")
                    queue.enqueue(
                        payload, headers={"tenant": who, "org": who, "user": f"user-{who}"}
                    )
                end = time.time() + DRAIN_S
                while (
                    (told := worker.ask())["ran"]
                    and len(worker.waits) < len(moments)
                    and time.time() < end
                ):
                    time.sleep(0.05)
                server = (processor(self.client) - before) * 1e6 / told["ran"]
                rate = told["ran"] / (time.time() - start)
                other.kill()
        over = {
            number: (time.time() - start - moment) * 1e3 for number, moment in enumerate(moments)
        }
        series = [
            round(worker.waits.get(number, over[number]), 2) for number in range(len(moments))
        ]
        sent = [wait - over for wait, over in zip(series, late, strict=True)]
        counted_sent = sorted(
            w for w, moment in zip(sent, moments, strict=True) if moment > FLOOD_AFTER_S
        )
        counted = sorted(
            wait for wait, moment in zip(series, moments, strict=True) if moment > FLOOD_AFTER_S
        )
        return {
            "p50": percentile(counted, 0.5), "p99": percentile(counted, 0.99), "most": counted[-1],
            "jobs": len(counted), "not begun": len(moments) - len(worker.waits),
            "of the flood": told["ran"] - len(worker.waits) - HANDLERS, "late": percentile(sorted(late), 0.99),
            "sent p99": percentile(counted_sent, 0.99),
            "rate": rate, "server": server,
            "longest": [max(series[at : at + EVERY]) for at in range(0, len(series), EVERY)],
        }  # fmt: skip

    def filled(self, jobs: int, tenants: list[str]) -> None:
        """Add jobs of the tenants by turns."""
        self.client.flushall()
        with Queue(NAME, url=self.server.url) as queue:
            for at in range(0, jobs, 1000):
                queue.enqueue_many(jobs_of(range(at, min(jobs, at + 1000)), tenants))

    def drain(self, terms: Terms, jobs: int, handlers: int, took: float) -> Figures:
        """Let a worker run the waiting jobs."""
        before = processor(self.client)
        with self.working(terms, handlers, took) as worker:
            assert worker.until(jobs)
            told = worker.ask()
        return {
            "rate": jobs / told["seconds"],
            "server": (processor(self.client) - before) * 1e6 / jobs,
            **told,
        }

    def weights(self) -> Figures:
        """Count the leases of three tenants, which have enough jobs each."""
        self.filled(len(WEIGHTS) * LEASES, list(WEIGHTS))
        terms = {"fair": "tenant", "weights": WEIGHTS}
        with self.working(terms, HANDLERS, TOOK_S) as worker:
            assert worker.until(LEASES)
            order: dict[str, int] = worker.ask()["order"]
        return {name: order.get(name, 0) for name in WEIGHTS}

    def calls(self) -> Figures:
        """Measure calls of one client. Return microseconds of the server a job, and bytes of a job
        in a line."""
        found: Figures = {}
        for way, terms in (
            ("without", {}),
            ("fair", {"fair": "tenant"}),
            ("two levels", {"fair": "org/user"}),
        ):
            for values in (1, TENANTS):
                names = [f"tenant-{number}" for number in range(values)]
                with Queue(NAME, url=self.server.url, **terms) as queue:
                    for most in CALLS:
                        self.filled(1, names)
                        queue.complete_many(queue.lease_many(1))
                        some = [self._first(queue, most, names) for _ in range(TIMES)]
                        first, ends = (
                            statistics.median(column) for column in zip(*some, strict=True)
                        )
                        self.filled(LINED, names)
                        before = self.client.info("memory")["used_memory"]
                        for _ in range(LINED // LOOKED_AT + 1):
                            queue.lease_many(1)
                        size = self.client.info("memory")["used_memory"] - before
                        lease = partial(queue.lease_many, most)
                        line = statistics.median(self._call(lease)[0] for _ in range(TIMES))
                        told = {
                            "first": first / most,
                            "line": line / most,
                            "end": ends / most,
                            "bytes": size / LINED,
                        }
                        found[f"{way}, {values}, {most}"] = told
        return found

    def _first(self, queue: Queue[bytes], most: int, names: list[str]) -> tuple[float, float]:
        """Measure a lease of new jobs and their completion."""
        queue.enqueue_many(jobs_of(range(most), names))
        lease, leases = self._call(lambda: queue.lease_many(most))
        assert len(leases) == most
        return lease, self._call(lambda: queue.complete_many(leases))[0]

    def _call(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Call, and return the microseconds of the server and the answer."""
        answer, took = metered(self.client, call)
        return took, answer

    def backlog(self) -> Figures:
        """Measure a lease and the completion of its jobs beside a backlog: microseconds of the
        server a job.

        The jobs take 5 ms, so each job of a call is of another value, if there are so many.
        """
        found: Figures = {}
        for way, (terms, values) in BACKLOGS.items():
            self.filled(BACKLOG, [f"tenant-{number}" for number in range(values)])
            with Queue(NAME, url=self.server.url, **terms) as queue:
                while (
                    terms and self.client.zcard(queue.ops.keys.key("lines")) < BACKLOG - LOOKED_AT
                ):
                    queue.complete_many(queue.lease_many(1))
                for most, (calls, _) in SIZES.items():
                    found[f"{way}: {most}"] = (
                        self._call(partial(self._exchange, queue, most, calls))[0] / most / calls
                    )
        return found

    @staticmethod
    def _exchange(queue: Queue[bytes], most: int, calls: int) -> None:
        """Lease and complete jobs, so many a call. The server is never at rest, as a worker keeps
        it."""
        under_way = deque[tuple[float, list[Any]]]()
        for _ in range(calls):
            under_way.append((time.monotonic() + TOOK_S, queue.lease_many(most)))
            assert len(under_way[-1][1]) == most
            while under_way and under_way[0][0] <= time.monotonic():
                queue.complete_many(under_way.popleft()[1])
        for due, leases in under_way:
            time.sleep(max(0.0, due - time.monotonic()))
            queue.complete_many(leases)

    def costs(self) -> Figures:
        """Drain the same jobs with and without terms, with slow handlers and with fast ones."""
        found: Figures = {}
        hundred = [f"tenant-{number}" for number in range(TENANTS)]
        for kind, jobs, tenants, handlers, took in (
            ("slow", SLOW, hundred, HANDLERS, TOOK_S),
            ("quick, 1 tenant", QUICK, hundred[:1], 100, 0.0),
            (f"quick, {TENANTS} tenants", QUICK, hundred, 100, 0.0),
        ):
            for way, terms in (("without", {}), ("fair", {"fair": "tenant"})):
                self.filled(jobs, tenants)
                told = self.drain(terms, jobs, handlers, took)
                found[f"{kind}: {way}"] = {key: told[key] for key in ("rate", "server")}
        return found


# -- the page --------------------------------------------------------------------------------------


def cell(values: list[float], digits: int = 1) -> str:
    """Return a cell with the median and the range of the rounds."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def flooded(row: str, found: Figures) -> list[str]:
    """Return the table of quiet tenants beside a flood."""
    rounds: dict[str, list[Figures]] = found["figures"]
    lines = [
        f"## {TITLES[row]}",
        "",
        "| | dwell p50, ms | p99, ms | of it without flood | most, ms | not begun |",
    ]
    lines.append("|---|---|---|---|---|---|")
    first = next(iter(rounds.values()))
    for way, some in rounds.items():
        ratios = [one["p99"] / other["p99"] for one, other in zip(some, first, strict=True)]
        cells = [cell([one[key] for one in some]) for key in ("p50", "p99")]
        cells += [cell(ratios), cell([one["most"] for one in some])]
        cells.append(
            f"{sum(one['not begun'] for one in some):,} of {sum(one['jobs'] for one in some):,}"
        )
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


def weighted(_row: str, found: Figures) -> list[str]:
    """Return the table of weights."""
    whole = sum(WEIGHTS.values())
    lines = [
        f"## Weights, over {LEASES:,} leases",
        "",
        "| tenant | weight | leases | of its share |",
        "|---|---|---|---|",
    ]
    for name, weight in WEIGHTS.items():
        leases = [float(one[name]) for one in found["figures"]]
        shares = [100 * one * whole / weight / LEASES for one in leases]
        lines.append(f"| {name} | {weight:g} | {cell(leases, 0)} | {cell(shares)} % |")
    return lines


def costs(_row: str, found: Figures) -> list[str]:
    """Return the table of costs."""
    rounds: list[Figures] = found["figures"]
    lines = [
        "## Costs",
        "",
        "| handlers | without, jobs/s | fair, jobs/s | of it without | more on the server, us/job |",
    ]
    lines.append("|---|---|---|---|---|")
    for kind in [name.removesuffix(": fair") for name in rounds[0] if name.endswith(": fair")]:
        without, fair = ([one[f"{kind}: {way}"] for one in rounds] for way in ("without", "fair"))
        ratios = [100 * b["rate"] / a["rate"] for a, b in zip(without, fair, strict=True)]
        more = [b["server"] - a["server"] for a, b in zip(without, fair, strict=True)]
        rates = [cell([one["rate"] for one in some], 0) for some in (without, fair)]
        lines.append(f"| {kind} | {' | '.join(rates)} | {cell(ratios)} % | {cell(more, 2)} |")
    return lines


def calls(_row: str, found: Figures) -> list[str]:
    """Return the table of calls of one client."""
    rounds: list[Figures] = found["figures"]
    lines = [
        "## Calls of one client",
        "",
        "Microseconds of the server a job, and bytes of a job that waits in a line.",
        "",
    ]
    lines += [
        "| | values | jobs a call | lease, first look | lease, from a line | completion | bytes |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for name in rounds[0]:
        cells = [cell([one[name][key] for one in rounds]) for key in ("first", "line", "end")]
        cells.append(cell([one[name]["bytes"] for one in rounds], 0))
        lines.append(f"| {' | '.join(name.split(', '))} | {' | '.join(cells)} |")
    return lines


def backlogs(_row: str, found: Figures) -> list[str]:
    """Return the table of the cost of calls beside a backlog, over the cost in a plain queue."""
    lines = [
        "## Lease and completion, beside a backlog",
        "",
        f"Microseconds of the server a job, by `commandstats`. {BACKLOG:,} jobs wait, each of 5 ms.",
        "Behind the +: how many more than in a plain queue.",
        "",
        f"| | {' | '.join(f'calls of {most}' for most in SIZES)} |",
        f"|---|{'---|' * len(SIZES)}",
        f"| goal: more than plain | {' | '.join(f'≤ {goal:g}' for _, goal in SIZES.values())} |",
    ]
    missed = 0
    for server, rounds in found["figures"].items():
        for way in BACKLOGS:
            cells: list[str] = []
            for most, (_, goal) in SIZES.items():
                cells.append(cell([one[f"{way}: {most}"] for one in rounds]))
                if way != "plain":
                    over = [one[f"{way}: {most}"] - one[f"plain: {most}"] for one in rounds]
                    cells[-1] += f"<br>+ {cell(over)}"
                    if statistics.median(over) > goal:
                        cells[-1] += " missed"
                        missed += 1
            lines.append(f"| {server}, {way} | {' | '.join(cells)} |")
    return [*lines, "", verdict(missed, len(found["figures"]) * (len(BACKLOGS) - 1) * len(SIZES))]


def verdict(missed: int, goals: int) -> str:
    """Say how many goals are missed."""
    return f"{missed} of {goals} goals are missed." if missed else f"All {goals} goals are met."


def latencies(_row: str, found: Figures) -> list[str]:
    """Return the table of quiet tenants beside a flood, for handlers of several kinds."""
    lines = [
        f"## The wait of {TENANTS} quiet tenants beside one with {FLOOD:,} jobs, `fair='tenant'`",
        "",
        "The goal is p99 ≤ 2 × the time of a handler + 2 ms, and ≤ 8 ms for handlers of 5 ms.",
        "A sender that is late itself, on a busy machine, is part of the dwell.",
        "",
        "| handlers | dwell p50, ms | p99, ms | goal, ms | most | sent late, p99, ms | since sent, p99, ms | jobs/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    missed = 0
    for kind, rounds in found["figures"].items():
        took = LATENCIES[kind][0]
        goal = 2e3 * took + 2
        goals = [goal, 8.0] if took == TOOK_S else [goal]
        p99 = [one["p99"] for one in rounds]
        over = [one for one in goals if statistics.median(p99) > one]
        missed += len(over)
        told = ", ".join(f"{one:g}{' missed' * (one in over)}" for one in goals)
        cells = [
            cell([one["p50"] for one in rounds]),
            cell(p99),
            told,
            cell([one["most"] for one in rounds]),
        ]
        cells += [cell([one[key] for one in rounds]) for key in ("late", "sent p99")]
        cells.append(cell([one["rate"] for one in rounds], 0))
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    number = sum(1 + (took == TOOK_S) for took, _ in LATENCIES.values())
    return [*lines, "", verdict(missed, number)]


def plain(_row: str, found: Figures) -> list[str]:
    """Return the cost of plain queues before and now."""
    return ["## Queues without terms", "", "```text", found["figures"].strip(), "```"]


SHOWN: dict[str, Callable[[str, Figures], list[str]]] = {
    "backlog": backlogs, "quiet": latencies, "flood": flooded, "keys": flooded, "weights": weighted,
    "costs": costs, "calls": calls, "plain": plain,
}  # fmt: skip


def page(told: dict[str, Any]) -> str:
    """Return the page of results."""
    tables = []
    for row, found in told["rows"].items():
        crowded = CROWDED if found["load"][0] > found["cores"] else ""
        others = OTHERS if found["busy"] else crowded
        where = CONDITIONS.format(
            **found, before=found["load"][0], after=found["load"][1], others=others
        )
        tables.append("\n".join([*SHOWN[row](row, found), "", where]))
    settings = {
        "handlers": HANDLERS,
        "took": TOOK_S * 1e3,
        "drain": DRAIN_S,
        "colour": told["colour"],
    }
    return TEXT.format(tables="\n\n".join(tables), **settings)


def picture(told: dict[str, Any]) -> str:
    """Return the plot of the longest wait in each tenth of a second over time, a line for each way,
    on a logarithmic scale.
    """
    wide, high, left, top = 760, 320, 66, 40
    figures = told["rows"]["flood"]["figures"]
    lines = {
        way: [
            statistics.median(column)
            for column in zip(*(one["longest"] for one in rounds), strict=True)
        ]
        for way, rounds in figures.items()
    }
    low = math.floor(math.log10(min(value for line in lines.values() for value in line)))
    most = math.ceil(math.log10(max(value for line in lines.values() for value in line)))
    seconds = max(len(line) for line in lines.values()) / 10

    def x(second: float) -> float:
        return left + (wide - left - 20) * second / seconds

    def y(value: float) -> float:
        return high - 40 - (high - 40 - top) * (math.log10(value) - low) / (most - low)

    style = "text{fill:#333}.g{stroke:#ccc}.o{stroke:#0b7285}.p{stroke:#adb5bd}.q{stroke:#c92a2a}"
    dark = "text{fill:#ddd}.g{stroke:#444}.o{stroke:#3bc9db}.p{stroke:#6c757d}.q{stroke:#ff8787}"
    size = f'viewBox="0 0 {wide} {high}" font-size="13" font-family="system-ui, sans-serif"'
    label = (
        'role="img" aria-label="The wait of quiet tenants beside a flood, with and without fair"'
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>',
        f"<style>{style}path{{fill:none;stroke-width:2}}@media(prefers-color-scheme:dark){{{dark}}}</style>",
        '<text x="10" y="20" font-weight="600">Longest wait of quiet tenants, in ms, over the seconds</text>',
    ]
    for power in range(low, most + 1):
        at = y(10.0**power)
        out += [
            f'<path class="g" style="stroke-width:1" d="M{left} {at:.0f}H{wide - 20}"/>',
            f'<text x="{left - 6}" y="{at + 4:.0f}" text-anchor="end">{10.0**power:,g}</text>',
        ]
    out += [
        f'<text x="{x(second):.0f}" y="{high - 18}" text-anchor="middle">{second}</text>'
        for second in range(int(seconds) + 1)
    ]
    for kind, (way, line) in zip("poq", lines.items(), strict=True):
        points = " ".join(
            f"{x((at + 0.5) / 10):.1f} {y(value):.1f}" for at, value in enumerate(line)
        )
        above = y(line[-1]) - (8 if kind != "p" else -24)
        out += [
            f'<path class="{kind}" d="M{points}"/>',
            f'<text x="{wide - 24}" y="{above:.0f}" text-anchor="end">{way.replace("`", "")}</text>',
        ]
    out.append(f'<text x="{x(FLOOD_AFTER_S):.0f}" y="{top - 4}" text-anchor="middle">flood</text>')
    return "\n".join([*out, "</svg>", ""])


def backlog_servers() -> list[str]:
    """Return the servers beside which calls are measured."""
    there = [one.name for one in binaries()]
    newest = next((name for name in there if name.startswith("redis")), "")
    return list(dict.fromkeys(name if name in there else newest for name in SERVERS))


def measure(row: str, bench: Bench, options: argparse.Namespace) -> Figures:
    """Measure a row."""
    found: Figures = conditions(options.server) | {
        "rounds": options.rounds,
        "seconds": options.seconds,
    }
    found["busy"] = options.busy
    if row in FLOODED:
        rounds: dict[str, list[Figures]] = {way: [] for way in FLOODED[row]}
        for number in range(options.rounds):
            ways = list(FLOODED[row].items())
            for way, (terms, jobs) in ways[number % 3 :] + ways[: number % 3]:
                rounds[way].append(
                    bench.quiet(terms, min(jobs, options.flood_jobs), options.seconds)
                )
                shown = {key: value for key, value in rounds[way][-1].items() if key != "longest"}
                print(row, way, json.dumps(shown), file=sys.stderr, flush=True)
        found["figures"] = rounds
    elif row == "quiet":
        found["figures"] = {kind: [] for kind in LATENCIES}
        for _ in range(options.rounds):
            for kind, (took, threads) in LATENCIES.items():
                jobs = min(FLOOD, options.flood_jobs)
                told = bench.quiet({"fair": "tenant"}, jobs, options.seconds, took, threads=threads)
                told.pop("longest")
                found["figures"][kind].append(told)
                print(row, kind, told["p50"], told["p99"], file=sys.stderr, flush=True)
    elif row == "backlog":
        found["figures"] = {name: [] for name in backlog_servers()}
        found["server"] = " and ".join(found["figures"])
        for _ in range(options.rounds):
            for name, rounds_there in found["figures"].items():
                binary = next(b for b in binaries() if b.name == name)
                with Server(binary) as server, redis.Redis(unix_socket_path=server.path) as client:
                    rounds_there.append(Bench(server, client, threads=False).backlog())
                print(row, name, json.dumps(rounds_there[-1]), file=sys.stderr, flush=True)
    elif row == "plain":
        text = io.StringIO()
        with ExitStack() as stack, redirect_stdout(text):
            compare(stack, bench.server, options.before, 10 * options.rounds, 250)
        found["figures"] = text.getvalue().replace("without steps: ", "")
    else:
        found["figures"] = []
        for _ in range(options.rounds):
            found["figures"].append(
                {"weights": bench.weights, "costs": bench.costs, "calls": bench.calls}[row]()
            )
            print(row, json.dumps(found["figures"][-1]), file=sys.stderr, flush=True)
    found["load"].append(conditions(options.server)["load"][0])
    return found


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="in which quiet tenants send")
    parser.add_argument("--flood-jobs", type=int, default=FLOOD, help="at most so many, for a look")
    parser.add_argument(
        "--rows",
        default=",".join(row for row in SHOWN if row != "plain"),
        help=f"some of {list(SHOWN)}",
    )
    parser.add_argument("--threads", action="store_true", help="the worker is one of threads")
    parser.add_argument(
        "--spread",
        type=float,
        default=0.0,
        help="of the handlers' times, around 5 ms: 0.6 for 2 to 8",
    )
    parser.add_argument(
        "--before", type=Path, help="a checkout whose library takes turns with ours in plain queues"
    )
    parser.add_argument(
        "--busy", action="store_true", help="take precedence over other programs, and say so"
    )
    parser.add_argument(
        "--write", action="store_true", help="keep the figures, and write their page and plot"
    )
    parser.add_argument(
        "--from", dest="kept", type=Path, help="use these figures in place of new ones"
    )
    for name in ("--serve", "--flood", "--url"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        spec = json.loads(options.serve)
        serve_threads(options.url, spec) if options.threads else asyncio.run(
            serve(options.url, spec)
        )
        return
    if options.flood:
        flood(options.url, int(options.flood))
        return
    told = json.loads(options.kept.read_text("utf-8")) if options.kept else run(options)
    print(page(told))
    if options.write:
        kept = json.loads(RAW.read_text("utf-8"))["rows"] if RAW.exists() else {}
        told["rows"] = {
            row: (kept | told["rows"])[row] for row in SHOWN if row in kept | told["rows"]
        }
        RAW.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    if options.write or options.kept:
        PAGE.write_text(page(told), "utf-8")
        PICTURE.write_text(picture(told), "utf-8")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the rows."""
    binary = next(b for b in binaries() if b.name == options.server)
    rows = options.rows.split(",") + ["plain"] * (options.before is not None)
    with Server(binary) as server, redis.Redis(unix_socket_path=server.path) as client:
        if options.busy:
            take_precedence(server)
        bench = Bench(server, client, threads=options.threads, spread=options.spread)
        found = {row: measure(row, bench, options) for row in dict.fromkeys(rows)}
    return {"colour": "threads" if options.threads else "asyncio", "rows": found}


if __name__ == "__main__":
    main()
