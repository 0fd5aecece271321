"""The jobs that a server loses when it dies, by its settings.

    python bench/loss.py --server valkey-9.1 --seconds 24 --write [--only Sentinel]

Each row has servers of its own, on which `headrace torture` works while they are killed. *killed*
is SIGKILL for the server's process: the page cache of the system survives. *machine* is the same,
and unsynced writes are dropped: a library that is loaded before the server's notes the size of each
file at its last fsync, and the file is cut to this size. It needs a C compiler. Not shown are disks
that acknowledge an fsync too early, or keep later writes without earlier ones.

*cut off* is a primary that neither replicas nor Sentinels reach, while clients do: it refuses PING
and PSYNC, and its links to replicas are closed. So it knows at once that it is alone; on a network
that is silent it learns it after `min-replicas-max-lag`, 10 s by default.
`--write` keeps the figures in `bench/results/loss.json`, and writes the table to
`bench/results/loss.md`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import redis
from attrs import asdict, frozen

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.compare import ROOT, conditions
from headrace import Queue
from headrace.console.cli.torture import Log, Torture
from tests.cluster.sentinels import Sentinels
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.servers import Binary, Server, binaries

RAW = ROOT / "bench" / "results" / "loss.json"
PAGE = ROOT / "bench" / "results" / "loss.md"
EVERY_S = 4.0  # between two kills of a server that starts again
WAITS_S = 2.0  # a job waits so long, because as many are ahead of it
ROUNDS = 3  # of servers of which one is killed once
MILLION = 1_000_000
SYNCED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is written before an fsync begins is on the disk when it returns. */
static int noted(const char *name, int fd) {
    int (*original)(int) = dlsym(RTLD_NEXT, name);
    struct stat before;
    char link[64], path[4096], note[8192], size[32];
    fstat(fd, &before);
    int result = original(fd);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (result || length < 0) return result;
    path[length] = 0;
    snprintf(note, sizeof note, "%s/%s", getenv("SYNCED"), strrchr(path, '/') + 1);
    int number = snprintf(size, sizeof size, "%020lld", (long long) before.st_size);
    int file = open(note, O_CREAT | O_WRONLY, 0600);
    if (pwrite(file, size, number, 0) != number) abort();
    close(file);
    return result;
}
int fsync(int fd) { return noted("fsync", fd); }
int fdatasync(int fd) { return noted("fdatasync", fd); }
"""

TEXT = """<!-- Written by bench/loss.py from bench/results/loss.json. Do not edit. -->
# Loss

Jobs per million that were acknowledged, by `headrace torture`.
*A kill*: jobs lost a kill, and the seconds of work that these are.

| server | fault | kills | acknowledged | lost | a kill | twice | come back | no answer | longest stall, s |
|---|---|---|---|---|---|---|---|---|---|
{rows}

- *killed*: SIGKILL for the server's process, which starts again at once; the system's page cache survives.
  Behind Sentinel and in a cluster the primary is killed once, and a replica takes over; three rounds.
- *machine*: the same, and all writes since the last fsync are dropped.
- *cut off*: neither replicas nor Sentinels reach the primary, clients do.
  It learns of it at once; on a silent network it would after `min-replicas-max-lag`.
- *lost*: the enqueue was acknowledged, and there is no trace of the job.
- *twice*: two completions were acknowledged.
- *come back*: handed out after the completion had been acknowledged.
- *no answer*: calls whose outcome is unknown, or of which `durable=` said that it was not confirmed.

RDB means a snapshot every two seconds. Valkey 8.1 and 9.1 answer `WAITAOF` before the fsync with `everysec`, as Redis
7.4 did (redis/redis#13793), so `durable="fsync"` is refused there.

{server}, Python {python}, {cores} cores, a load of {before:.1f} before and {after:.1f} after, commit {commit}.
{seconds:g} seconds a row, at most {rate:,.0f} jobs a second, each of which waits {waits:g} seconds.

Repeat it with `python bench/loss.py --write`, or on a server of yours with `headrace torture`.
"""


@frozen
class Stand:
    """A queue on servers that were started for it, and the fault that ends one of them."""

    queue: Queue
    kill: Callable[[], object]
    once: bool = False


@frozen
class Case:
    """A row of the table."""

    server: str
    fault: str
    start: Callable[[ExitStack, Binary], Stand]
    binary: str | None = None
    """Another server than the other rows have."""

    @property
    def name(self) -> str:
        """How it is called by `--only`, and in the figures."""
        other = f" ({self.binary})" if self.binary else ""
        return f"{self.server}{other}, {self.fault}"


# -- one server ------------------------------------------------------------------------------------


def alone(
    extra: tuple[str, ...],
    stack: ExitStack,
    binary: Binary,
    *,
    machine: bool = False,
    durable: str | None = None,
) -> Stand:
    """Start a server with these options."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hl-")))
    environment = noting(folder) if machine else None
    data = folder / "data"
    data.mkdir()
    options = ["--auto-aof-rewrite-percentage", "0", *extra]
    server = Server(
        binary,
        appendonly="--appendfsync" in extra,
        directory=data,
        extra=options,
        environment=environment,
    )
    stack.enter_context(server)

    def kill() -> None:
        server.kill()
        if machine:
            drop_unsynced(data, folder)
        server.start()

    queue = server.queue("jobs", lease=5.0, timeout=10.0, max_attempts=None, durable=durable)
    return Stand(stack.enter_context(queue), kill)


def noting(folder: Path) -> dict[str, str]:
    """Build the library that notes each fsync, and return the environment that loads it."""
    source = folder / "synced.c"
    library = folder / "synced.so"
    source.write_text(SYNCED)
    command = ["cc", "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library), "SYNCED": str(folder)}


def drop_unsynced(data: Path, notes: Path) -> int:
    """Cut each file of appended commands to its size at its last fsync. Return the bytes that are
    gone."""
    gone = 0
    for path in [*data.rglob("*.incr.aof"), *data.rglob("appendonly.aof")]:
        if path.is_dir():
            continue
        note = notes / path.name
        synced = int(note.read_text()) if note.exists() else 0
        size = path.stat().st_size
        gone += max(0, size - synced)
        with path.open("rb+") as file:
            file.truncate(min(size, synced))
    return gone


# -- several servers -------------------------------------------------------------------------------


def sentinels(
    stack: ExitStack,
    binary: Binary,
    *,
    cut_off: bool = False,
    durable: str | None = None,
    least: int = 0,
) -> Stand:
    """Start a primary with two replicas and three Sentinels."""
    servers = stack.enter_context(Sentinels(binary, 2))
    for node in servers.nodes:
        node.ask("CONFIG", "SET", "min-replicas-to-write", least)
    primary = servers.primary

    def kill() -> None:
        if cut_off:
            primary.ask("ACL", "SETUSER", "default", "-ping", "-psync", "-sync")
            primary.ask("CLIENT", "KILL", "TYPE", "replica")
        else:
            primary.kill()
        until(lambda: servers.primary is not primary, "another primary")

    client = servers.client(redis)
    stack.callback(client.close)
    queue: Queue = Queue(
        "jobs", client=client, lease=5.0, timeout=10.0, max_attempts=None, durable=durable
    )
    return Stand(stack.enter_context(queue), kill, once=True)


def cluster(stack: ExitStack, binary: Binary, *, durable: str | None = None) -> Stand:
    """Start three masters with a replica each."""
    nodes = stack.enter_context(Cluster(binary, replicas=1))
    master = nodes.owner("jobs")

    def kill() -> None:
        master.kill()
        until(lambda: nodes.owner("jobs") is not master, "another master")
        master.start()

    queue = nodes.queue("jobs", lease=5.0, timeout=10.0, max_attempts=None, durable=durable)
    return Stand(stack.enter_context(queue), kill, once=True)


def cases() -> list[Case]:
    """Return the rows, in their order."""
    always = ("--appendfsync", "always")
    everysec = ("--appendfsync", "everysec")
    fsync = partial(alone, everysec, machine=True, durable="fsync")
    two = partial(sentinels, durable="replicas:1")
    least = partial(sentinels, least=1)
    return [
        Case("AOF `always`", "killed", partial(alone, always)),
        Case("AOF `always`", "machine", partial(alone, always, machine=True)),
        Case("AOF `everysec`", "killed", partial(alone, everysec)),
        Case("AOF `everysec`", "machine", partial(alone, everysec, machine=True)),
        Case('AOF `everysec`, `durable="fsync"`', "machine", fsync, "redis-8.2"),
        Case("RDB", "killed", partial(alone, ("--save", "2 1"))),
        Case("nothing", "killed", partial(alone, ())),
        Case("Sentinel", "killed", sentinels),
        Case("Sentinel, `min-replicas-to-write 1`", "killed", least),
        Case('Sentinel, `durable="replicas:1"`', "killed", two),
        Case("Sentinel", "cut off", partial(sentinels, cut_off=True)),
        Case("Sentinel, `min-replicas-to-write 1`", "cut off", partial(least, cut_off=True)),
        Case('Sentinel, `durable="replicas:1"`', "cut off", partial(two, cut_off=True)),
        Case("cluster", "killed", cluster),
        Case('cluster, `durable="replicas:1"`', "killed", partial(cluster, durable="replicas:1")),
    ]


# -- measuring -------------------------------------------------------------------------------------


def work(case: Case, binary: Binary, seconds: float, rate: float) -> Counter[str]:
    """Work on the servers of a row for so long. Return the verdict and the number of kills."""
    kills = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hl-")))
        stand = case.start(stack, binary)
        log = Log(folder / "log")
        stack.callback(log.close)

        def kill() -> None:
            nonlocal kills
            if not stand.once or not kills:
                kills += 1
                stand.kill()

        torture = Torture(stand.queue, log, rate=rate, batch=50, ahead=int(WAITS_S * rate))
        verdict = torture.go(seconds, seconds / 3 if stand.once else EVERY_S, kill)
    return Counter({"kills": kills, **asdict(verdict)})


def measure(case: Case, binary: Binary, seconds: float, rate: float) -> dict[str, Any]:
    """Return the figures of a row. Where a server is killed once, they are the sums of rounds."""
    rounds = ROUNDS if case.server.startswith(("Sentinel", "cluster")) else 1
    found = [work(case, binary, seconds / rounds, rate) for _ in range(rounds)]
    stall = max(one["longest_stall_s"] for one in found)
    figures = sum(found, Counter[str]())
    numbers = {name: figures[name] for name in found[0]} | {"longest_stall_s": stall}
    return {"server": case.name.rpartition(", ")[0], "fault": case.fault, **numbers}


def row(found: dict[str, Any], seconds: float) -> str:
    """Return a line of the table."""
    done = max(1, found["acknowledged"])
    lost = found["lost"] / max(1, found["kills"])
    share = lost * seconds / done
    cells = [
        found["server"],
        found["fault"],
        found["kills"],
        f"{found['acknowledged']:,}",
        f"{found['lost'] * MILLION / done:,.0f}",
        f"{lost:,.0f} ({share:.2f} s)" if lost else "0",
        f"{found['completed_twice'] * MILLION / done:,.0f}",
        f"{found['come_back'] * MILLION / done:,.0f}",
        found["outcome_unknown"],
        f"{found['longest_stall_s']:.1f}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def page(told: dict[str, Any]) -> str:
    """Return the page of results."""
    rows = "\n".join(row(found, told["seconds"]) for found in told["rows"])
    before, after = told["load"]
    return TEXT.format(**told | {"rows": rows}, before=before, after=after, waits=WAITS_S)


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", default=binaries()[0].name)
    parser.add_argument("--seconds", type=float, default=24.0)
    parser.add_argument("--rate", type=float, default=3000.0, help="jobs a second, at most")
    parser.add_argument("--only", default="", help="rows with this in their name")
    parser.add_argument("--write", action="store_true", help="keep the figures, and their page")
    options = parser.parse_args()
    logging.getLogger("headrace").addHandler(logging.NullHandler())
    by_name = {binary.name: binary for binary in binaries()}
    told = conditions(options.server) | {"seconds": options.seconds, "rate": options.rate}
    kept = json.loads(RAW.read_text("utf-8"))["rows"] if options.only and RAW.exists() else []
    found = {f"{one['server']}, {one['fault']}": one for one in kept}
    for case in cases():
        if options.only in case.name:
            server = by_name[case.binary or options.server]
            found[case.name] = measure(case, server, options.seconds, options.rate)
            print(row(found[case.name], options.seconds), flush=True)
    told["rows"] = [found[case.name] for case in cases() if case.name in found]
    told["load"].append(os.getloadavg()[0])
    if options.write:
        RAW.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
        PAGE.write_text(page(told), "utf-8")


if __name__ == "__main__":
    main()
