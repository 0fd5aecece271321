"""`headrace demo`, in which every module of Python's standard library is a job, and one of three
workers is killed.

The completion of a job keeps its result. The queue publishes an event for each completion: a second
one of a job would be among them. Each worker is `python -m headrace.console.cli.demo FOLDER NAME`;
the folder holds the server's URL and the errors.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import secrets
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer
from attrs import define, field, frozen

from headrace import Counts, Event, Job, NewJob, Queue, Retry, Worker
from headrace.console.cli.child import follow
from headrace.console.cli.console import connected, remove_namespace, reported, terminated
from headrace.console.cli.output import print_out, show
from headrace.console.cli.work import Process, end
from headrace.errors import ConfigurationError, HeadraceError

QUEUE = "modules"
WORKERS = ("worker-1", "worker-2", "worker-3")
HEARTBEAT_S, TIMEOUT_S = 0.3, 1.0  # short, so that the demo shows a takeover
POLL_S = 0.02  # seconds between two readings of the counts and the workers
LIBRARY = Path(sysconfig.get_path("stdlib"))
# by the beginnings of their names
COUNTED = {"def": "functions", "class": "classes", "unparsable": "unparsable"}


@frozen
class Evidence:
    expected: Mapping[str, str]
    results: Mapping[str, str]
    counts: Counts
    completions: Sequence[str]

    def differences(self) -> list[str]:
        times = Counter(self.completions)
        total = len(self.expected)
        wrong = {
            "without a result": self.expected.keys() - self.results,
            "with another result": {
                job for job, one in self.results.items() if one != self.expected.get(job)
            },
            "completed twice": {job for job, number in times.items() if number > 1},
            "whose completion nobody saw": self.expected.keys() - times,
            "completed that nobody enqueued": times.keys() - self.expected,
        }
        numbers = {"enqueued": total, "completed": total, "lost": 0, "present": 0}
        found = {name: getattr(self.counts, name) for name in numbers}
        return [
            f"{len(jobs)} jobs {text}, such as {min(jobs)}" for text, jobs in wrong.items() if jobs
        ] + [
            f"{name}: {found[name]} instead of {number}"
            for name, number in numbers.items()
            if found[name] != number
        ]


def modules(library: Path) -> list[str]:
    found: list[str] = []
    for folder, folders, files in os.walk(library):
        folders[:] = [
            name
            for name in folders
            if name not in ("site-packages", "dist-packages", "__pycache__")
        ]
        paths = (Path(folder, name) for name in files if name.endswith(".py"))
        found += [
            path.relative_to(library).as_posix()
            for path in paths
            if path.is_file() and os.access(path, os.R_OK)
        ]
    return sorted(found)


def facts(source: bytes) -> str:
    names: list[str] = []
    try:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names.append(f"def {node.name}/{len(node.args.args)}")
            elif isinstance(node, ast.ClassDef):
                names.append(f"class {node.name}")
    # some of Python's tests are so on purpose
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        names.append("unparsable")
    count = {text: sum(name.startswith(kind) for name in names) for kind, text in COUNTED.items()}
    digest = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()
    return json.dumps({"modules": 1, "lines": len(source.splitlines()), **count, "sha256": digest})


def totals(results: Mapping[str, str]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [json.loads(result) for result in results.values()]
    digest = hashlib.sha256(json.dumps(sorted(results.items())).encode()).hexdigest()[:16]
    return {
        key: sum(row[key] for row in rows) for key in ("modules", "lines", *COUNTED.values())
    } | {"digest": digest}


@define
class Run:
    queue: Queue
    folder: Path
    total: int
    killed: str = "Nobody was killed: so few jobs were done too soon."
    seconds: float = 0.0
    seen: dict[str, list[str]] = field(
        factory=lambda: {"completed": list[str](), "reclaimed": list[str]()}
    )
    _running: dict[str, Process] = field(factory=dict[str, Process])

    def go(self, ids: Sequence[str]) -> None:
        with self.queue.events([*self.seen]) as events:
            collector = threading.Thread(target=self._collect, args=(events,))
            collector.start()
            try:
                self.queue.enqueue_many([NewJob(name, id=name) for name in ids])
                # here a signal may come between a start and the note of it
                with ThreadPoolExecutor(1) as starter:
                    list(starter.map(self._start, WORKERS))
                self._watch()
                until = time.monotonic() + 5.0  # for the last events
                while len(self.seen["completed"]) < self.total and time.monotonic() < until:
                    time.sleep(POLL_S)
            finally:
                end(self._running.values())
                events.close()
                collector.join()

    def _collect(self, events: Iterable[Event]) -> None:
        for event in events:
            self.seen[event.kind].append(event.id or "")

    def _start(self, name: str) -> None:
        with (self.folder / name).open("wb") as errors:
            self._running[name] = Process.start(
                ["-m", "headrace.console.cli.demo", str(self.folder), name], errors
            )

    def _watch(self) -> None:
        start = printed = time.monotonic()
        counts = self.queue.counts()
        while counts.present > counts.dead:
            time.sleep(POLL_S)
            counts = self.queue.counts()
            now = time.monotonic()
            if len(self._running) == len(WORKERS) and counts.completed * 2 >= self.total:
                self._kill(counts)
            for name, process in self._running.items():
                if (code := process.popen.poll()) is not None:
                    why = (self.folder / name).read_text("utf-8", "replace").strip()
                    raise HeadraceError(f"{name} ended with status {code}: {why[-2000:]}")
            if now - printed >= 1.0:
                printed = now
                state = (
                    f"{counts.waiting} waiting, {counts.leased} leased, "
                    f"{len(set(self.seen['reclaimed']))} reclaimed"
                )
                print_out(
                    f"{now - start:5.1f} s: {counts.completed} of {self.total} completed, {state}"
                )
        self.seconds = time.monotonic() - start

    def _kill(self, counts: Counts) -> None:
        name = max(WORKERS, key=self._leased)
        process = self._running[name]
        process.popen.send_signal(signal.SIGSTOP)
        leased = self._leased(name)
        process.popen.send_signal(signal.SIGKILL if leased else signal.SIGCONT)
        if leased:
            end([self._running.pop(name)])
            how = f"{name} (process {process.popen.pid}) was killed with SIGKILL after {counts.completed} completions"
            self.killed = f"{how}, when {leased} jobs were leased to it."

    def _leased(self, name: str) -> int:
        return sum(
            worker.leased
            for worker in self.queue.admin.workers()
            if worker.name.startswith(f"{name}.")
        )


def report(evidence: Evidence) -> int:
    columns = ("", "by the queue", "by a single pass")
    expected = totals(evidence.expected)
    show(
        columns,
        [(key, one, expected[key]) for key, one in totals(evidence.results).items()],
        columns,
    )
    twice = sum(number > 1 for number in Counter(evidence.completions).values())
    counts = {
        **attrs.asdict(evidence.counts),
        "lost": evidence.counts.lost,
        "completed twice": twice,
    }
    show(
        ("", "jobs"), [(key.replace("_", " "), number) for key, number in counts.items()], ("jobs",)
    )
    wrong = evidence.differences()
    for one in wrong or ["Lost 0, completed twice 0, and the results are the same."]:
        print_out(f"DIFFERENT: {one}" if wrong else one)
    return 1 if wrong else 0


def run_demo(url: str | None = None, limit: int | None = None) -> int:
    ids = modules(LIBRARY)[:limit]
    if not ids:
        raise ConfigurationError(
            f"no modules in {LIBRARY}: this Python keeps its standard library somewhere else"
        )
    with terminated(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-")))
        place = {
            "url": url or f"embedded:{folder}/server",
            "namespace": f"demo-{secrets.token_hex(6)}",
        }
        # arguments would show a password
        (folder / "place.json").write_text(json.dumps(place), "utf-8")
        client = stack.enter_context(connected(place["url"]))
        if url is not None:
            stack.callback(remove_namespace, client, place["namespace"])
        queue = stack.enter_context(Queue(QUEUE, client=client, namespace=place["namespace"]))
        print_out(f"{len(ids)} modules of {LIBRARY}, and {len(WORKERS)} workers")
        run = Run(queue, folder, len(ids))
        run.go(ids)
        print_out(f"{run.killed}\n{len(set(run.seen['reclaimed']))} jobs were reclaimed.")
        print_out(
            f"{len(ids)} jobs in {run.seconds:.1f} s; now a single pass without a queue, to compare the results"
        )
        kept = {job: result.decode() for job, result in queue.results(ids).items()}
        return report(Evidence(_single_pass(ids), kept, queue.counts(), run.seen["completed"]))


def demo(
    url: Annotated[
        str | None,
        typer.Option(help="Any server; a private one (extra embedded) if none is given."),
    ] = None,
    limit: Annotated[int | None, typer.Option(hidden=True, min=1)] = None,
) -> None:
    """Parse Python's standard library as jobs.

    Each module is a job, and three worker processes parse them. Half-way, the worker that holds the
    most jobs is killed with SIGKILL. At the end the results are compared with a plain single pass,
    and all jobs are accounted for. It exits with 1 if anything differs.

    On a server of yours it uses a namespace of its own, and removes it.
    """
    with reported():
        raise typer.Exit(run_demo(url, limit))


def _single_pass(ids: Sequence[str]) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old modules have much to be warned of
        return {name: facts((LIBRARY / name).read_bytes()) for name in ids}


def main() -> None:
    folder, name, link = sys.argv[1:]
    follow(int(link))
    place = json.loads(Path(folder, "place.json").read_text("utf-8"))
    worker = Worker(name=name, heartbeat=HEARTBEAT_S, timeout=TIMEOUT_S, **place)

    @worker.handler(QUEUE, concurrency=2, retry=Retry(attempts=5))
    def parse(job: Job) -> str:
        return facts((LIBRARY / job.payload.decode()).read_bytes())

    warnings.simplefilter("ignore")
    worker.run()


if __name__ == "__main__":
    main()
