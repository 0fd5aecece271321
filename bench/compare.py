"""headrace beside other queues and a bare loop of redis-py, each in its own environment, in
interleaved rounds.

python bench/compare.py --server valkey-9.1 --rounds 3 --jobs 2000 --write

Environments are made from the registry, and kept in `--environments`; what can't be had is skipped,
with a line. `--write` puts the figures to `bench/results/compare.json`, the table to
`bench/results/compare.md`, and the plot to `docs/pictures/comparison.svg`; `--from
bench/results/compare.json` makes these anew.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.peers import PEERS, SETTINGS
from tests.support.servers import Server, binaries

ROOT = Path(__file__).parent.parent
RAW = ROOT / "bench" / "results" / "compare.json"
PAGE = ROOT / "bench" / "results" / "compare.md"
PICTURE = ROOT / "docs" / "pictures" / "comparison.svg"
RUNNER = Path(__file__).parent / "peers.py"
PACKAGES = {
    "rq": ["rq"], "dramatiq": ["dramatiq[redis]"], "taskiq-redis": ["taskiq-redis"],
    "saq": ["saq[redis]", "typing-extensions"], "arq": ["arq"], "celery": ["celery[redis]"],
    "bullmq": ["bullmq"], "tarsk-redis": ["tarsk-redis"], "redis-work-queue": ["redis-work-queue"],
    "fastq-redis": ["fastq-redis"], "ardiq": ["ardiq"],
}  # fmt: skip
NEWER = {"ardiq": ">=3.12"}  # a Python that uv finds, where a peer takes none as old as ours may be
BULK = (  # the others have no call for many jobs
    "redis-py", "headrace", "headrace-threads", "rq", "bullmq", "redis-work-queue", "ardiq",
)  # fmt: skip
BY_TCP = ("tarsk-redis", "fastq-redis")
LIMIT_S = 300.0  # seconds that one measurement may take
OURS = "headrace"

TEXT = """<!-- Written by bench/compare.py from bench/results/compare.json. Do not edit. -->
# Comparison

headrace beside other Python queues on Redis, and beside a bare loop of redis-py, which promises nothing.
All in one run, in interleaved rounds on one server, each in an environment of its own.
Rates differ from machine to machine: compare within a column, mind the spread, and trust processor times most.

![Comparison of headrace with other queues](../../docs/pictures/comparison.svg)

{table}
{left_out}
Medians of {rounds} rounds, in brackets the least and the most; {jobs:,} jobs of 100 bytes ({bulk:,} in bulk),
{lone} lone ones. {server} over a unix socket without persistence, Python {python}, {cores} cores,
a load of {before:.1f} before and {after:.1f} after, commit {commit}.

- *one by one*: calls of one producer, each after the answer to the last. *In bulk*: the call for many, if there is one.
- *worker, jobs/s*: of one worker process, from its first job to its last; the handler counts.
- *producer*, *server*, *worker*: microseconds of processor time for a job; of a producer one by one, with its
  connection and first call.
- *idle*: milliseconds from before the call to the first line of an idle worker's handler; the calls are 0.1 s apart.
- *bytes*: what a waiting job takes of the server's memory. *Not run*: 30 seconds after the last that was.

Each is set up for speed:

{settings}

Promises, such as for the jobs of a worker that dies, are not measured: [choosing](../../docs/explanation/choosing.md).
Larger backlogs, payloads, and numbers of workers and queues: [as it grows](growth.md).
Repeat it with `python bench/compare.py --write`.
"""
Figures = dict[str, float]
COLUMNS = {  # of a figure: its title, digits after the point, and whether more is better
    "one": ("one by one, jobs/s", 0, True),
    "producer": ("producer, us/job", 0, False),
    "bulk": ("in bulk, jobs/s", 0, True),
    "drain": ("worker, jobs/s", 0, True),
    "p50": ("idle p50, ms", 2, False),
    "p99": ("idle p99, ms", 2, False),
    "server": ("server, us/job", 1, False),
    "worker": ("worker, us/job", 0, False),
    "bytes": ("bytes/job", 0, False),
}


def environment(peer: str, folder: Path) -> tuple[str, str]:
    """Make a peer's environment and return its Python and the version of the peer. Raises
    `CalledProcessError`."""
    if peer not in PACKAGES:
        return sys.executable, version("redis" if peer == "redis-py" else "headrace")
    python = folder / peer / "bin" / "python"
    if not python.exists():
        uv = shutil.which("uv")
        make = (
            [uv, "venv", "-q", "-p", NEWER.get(peer, sys.executable)]
            if uv
            else [sys.executable, "-m", "venv"]
        )
        install = (
            [uv, "pip", "install", "-q", "-p", python]
            if uv
            else [python, "-m", "pip", "install", "-q"]
        )
        for command in ([*make, folder / peer], [*install, *PACKAGES[peer], "hiredis"]):
            subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    asked = f"from importlib.metadata import version; print(version({peer!r}))"
    told = subprocess.run(
        [python, "-c", asked], check=True, capture_output=True, text=True, timeout=60
    )
    return str(python), told.stdout.strip()


class Peer:
    """A library that is compared."""

    def __init__(self, name: str, python: str, server: Server) -> None:
        self.name, self._python = name, python
        self._url = server.url if name in BY_TCP else f"unix://{server.path}"

    def begin(self, verb: str, jobs: int, **more: float | str) -> subprocess.Popen[str]:
        """Start one of its programs. *more* are `bytes` of a job, `queues`, `seconds`, `rate` and
        `board`."""
        command = [self._python, str(RUNNER), self.name, verb, self._url, str(jobs)]
        environ = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        environ |= {"PYTHONPATH": str(ROOT / "src") if self.name not in PACKAGES else ""}
        environ |= {f"BENCH_{name.upper()}": str(value) for name, value in more.items()}
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=RUNNER.parent,
            env=environ,
        )

    def end(self, process: subprocess.Popen[str], limit: float = LIMIT_S) -> Any:
        """Return the output of a program within so many seconds."""
        with process:
            try:
                out, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return json.loads(out.strip().splitlines()[-1])


def processor(client: Any) -> float:
    """Return the seconds of processor time of the server so far."""
    told = client.info("cpu")
    return float(told["used_cpu_user"] + told["used_cpu_sys"])


def measure(peer: Peer, client: Any, jobs: int, lone: int) -> Figures:
    """Measure a peer once."""
    client.flushall()
    if peer.name in BULK:
        bulk = 10 * jobs / peer.end(peer.begin("bulk", 10 * jobs))["seconds"]
        client.flushall()
    time.sleep(0.5)  # what earlier clients held is freed
    before = client.info("memory")["used_memory"]
    told = peer.end(peer.begin("one", jobs))
    figures = {"one": jobs / told["seconds"], "producer": told["processor"] * 1e6 / jobs}
    figures["bytes"] = (client.info("memory")["used_memory"] - before) / jobs
    if peer.name in BULK:
        figures["bulk"] = bulk
    spent = processor(client)
    worker = peer.begin("work", jobs)
    told = peer.end(worker)
    figures["drain"] = (jobs - 1) / told["seconds"]
    figures["server"] = (processor(client) - spent) * 1e6 / jobs
    figures["worker"] = told["processor"] * 1e6 / jobs
    lost, doubled = told["lost"], told["doubled"]
    client.flushall()
    worker = peer.begin("work", lone)
    time.sleep(3.0)  # it starts, and goes to rest
    peer.end(peer.begin("lone", lone))
    told = peer.end(worker)
    return figures | {
        "p50": told["p50"], "p99": told["p99"], "lost": lost + told["lost"], "doubled": doubled + told["doubled"],
    }  # fmt: skip


# -- what is shown ---------------------------------------------------------------------------------


def median(rounds: list[Figures], key: str) -> float | None:
    """Return the median of a figure, if it was measured."""
    values = [one[key] for one in rounds if key in one]
    return statistics.median(values) if values else None


def cell(rounds: list[Figures], key: str, digits: int) -> str:
    """Return a cell of the table with the median and the range of the rounds."""
    values = [one[key] for one in rounds if key in one]
    if not values:
        return "–"
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def page(told: dict[str, Any]) -> str:
    titles = [title for title, _, _ in COLUMNS.values()]
    rows = [
        f"| | {' | '.join([*titles, 'not run', 'run twice'])} |",
        "|---|" + "---|" * (len(titles) + 2),
    ]
    for name, peer in told["peers"].items():
        rounds = peer["rounds"]
        cells = [cell(rounds, key, digits) for key, (_, digits, _) in COLUMNS.items()]
        cells += [f"{sum(one[key] for one in rounds):.0f}" for key in ("lost", "doubled")]
        rows.append(f"| {name} {peer['version']} | {' | '.join(cells)} |")
    return TEXT.format(
        **told,
        table="\n".join(rows),
        left_out="".join(f"\n{name} was left out: {why}." for name, why in told["skipped"].items()),
        bulk=10 * told["jobs"],
        before=told["load"][0],
        after=told["load"][1],
        settings="\n".join(f"- {name}: {SETTINGS[name]}" for name in told["peers"]),
    )


def picture(told: dict[str, Any]) -> str:
    """Return the plot with a panel for each of four figures and a bar for each peer, on a
    logarithmic scale."""
    panels, wide, bar = ("one", "drain", "p50", "server"), 470, 22
    names = list(told["peers"])
    high = 48 + bar * len(names)
    style = "text{fill:#333}.o{fill:#0b7285}.p{fill:#adb5bd}"
    dark = "@media(prefers-color-scheme:dark){text{fill:#ddd}.p{fill:#6c757d}.o{fill:#3bc9db}}"
    size = f'viewBox="0 0 {2 * wide} {2 * high + 10}" font-size="13" font-family="system-ui, sans-serif"'
    label = 'role="img" aria-label="Comparison of headrace with other queues"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>',
        f"<style>{style}{dark}</style>",
    ]
    for number, key in enumerate(panels):
        title, digits, more = COLUMNS[key]
        left, top = number % 2 * wide, number // 2 * high
        values = {name: median(told["peers"][name]["rounds"], key) for name in names}
        there = {name: value for name, value in values.items() if value}
        least, most = min(there.values()) / 2, max(there.values())
        out.append(
            f'<text x="{left + 10}" y="{top + 24}" font-weight="600">{title} '
            f"({'more' if more else 'less'} is better, logarithmic)</text>"
        )
        for at, (name, value) in enumerate(
            sorted(there.items(), key=lambda pair: pair[1], reverse=more)
        ):
            y = top + 36 + at * bar
            long = 240 * math.log(value / least) / math.log(most / least)
            kind = "o" if name.startswith(OURS) else "p"
            out += [
                f'<text x="{left + 125}" y="{y + 14}" text-anchor="end">{name}</text>',
                f'<rect class="{kind}" x="{left + 132}" y="{y + 2}" width="{long:.0f}" height="{bar - 6}" rx="2"/>',
                f'<text x="{left + 138 + long:.0f}" y="{y + 14}">{value:,.{digits}f}</text>',
            ]
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    """Measure, print, and write."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--lone", type=int, default=100, help="jobs for an idle worker")
    options = parser.parse_args()
    told = json.loads(options.kept.read_text("utf-8")) if options.kept else compare(options)
    text = page(told)
    print(text)
    if options.write:
        RAW.parent.mkdir(exist_ok=True)
        RAW.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    if options.write or options.kept:
        PAGE.write_text(text, "utf-8")
        PICTURE.write_text(picture(told), "utf-8")


def arguments(text: str | None) -> argparse.ArgumentParser:
    """Return the parser of the arguments that all comparisons share."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--only", default=",".join(PEERS), help="some of " + ", ".join(PEERS))
    parser.add_argument("--environments", type=Path, default=ROOT / ".cache" / "compare")
    parser.add_argument(
        "--write", action="store_true", help="keep the figures, and what is made of them"
    )
    parser.add_argument(
        "--from", dest="kept", type=Path, help="make of these figures what is made of new ones"
    )
    return parser


def conditions(server: str) -> dict[str, Any]:
    """Return the conditions of the measurement."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "server": server, "python": platform.python_version(), "cores": os.cpu_count(), "load": [os.getloadavg()[0]],
        "commit": commit.stdout.strip(),
    }  # fmt: skip


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all that are available in rounds, each time in another order."""
    binary = next(b for b in binaries() if b.name == options.server)
    told = conditions(options.server)
    told |= {
        "rounds": options.rounds,
        "jobs": options.jobs,
        "lone": options.lone,
        "peers": {},
        "skipped": {},
    }
    with Server(binary, tcp=True) as server, redis.Redis(unix_socket_path=server.path) as client:
        peers: list[Peer] = []
        for name in options.only.split(","):
            try:
                python, its = environment(name, options.environments)
            except (subprocess.SubprocessError, OSError) as error:
                print(f"{name} is skipped: {error}", file=sys.stderr)
                told["skipped"][name] = "its environment could not be made"
                continue
            peers.append(Peer(name, python, server))
            told["peers"][name] = {"version": its, "rounds": []}
        for number in range(options.rounds):
            for peer in peers[number % len(peers) :] + peers[: number % len(peers)]:
                try:
                    figures = measure(peer, client, options.jobs, options.lone)
                except (subprocess.SubprocessError, IndexError, ValueError) as error:
                    print(f"{peer.name} fails: {error!r}", file=sys.stderr, flush=True)
                    continue
                print(peer.name, json.dumps(figures), file=sys.stderr, flush=True)
                told["peers"][peer.name]["rounds"].append(figures)
    for name in [name for name, peer in told["peers"].items() if not peer["rounds"]]:
        told["skipped"][name] = "it did not run"
        del told["peers"][name]
    told["load"].append(os.getloadavg()[0])
    return told


if __name__ == "__main__":
    main()
