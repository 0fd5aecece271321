"""`headrace demo`: every module of Python's standard library is a job, and one of three workers is killed half-way.

A producer process enqueues the modules, worker processes parse them, another process does the same in a single pass
without any queue. Each result is kept by the completion of its job, read back by the job's id, and compared. Every
worker logs, in a file of its own, which jobs it ran; the queue publishes an event for every completion: a second one
for any job would be among them.

The processes are `python -m headrace._cli.demo ROLE FOLDER`; the folder holds the plan and their output.
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
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import redis
from attrs import frozen

from headrace._api.sync.queue import Queue
from headrace._api.sync.worker import Worker
from headrace._cli.console import connected, say
from headrace._cli.demo_report import Evidence, Killed, Show, read_log, report
from headrace._cli.processes import Process, end, follow
from headrace._model.job import Job, NewJob
from headrace._model.policy import Retry
from headrace._model.state import Counts
from headrace.errors import ConfigurationError, HeadraceError

QUEUE = "modules"
WORKERS = ("worker-1", "worker-2", "worker-3")
HEARTBEAT_S, TIMEOUT_S = 0.3, 1.0  # seconds; short, to see a takeover within the demo
STALL_S = 60.0  # seconds without a completion after which the demo fails
EVENTS_WITHIN_S = 5.0  # seconds that the last events may take after the end
JOBS_PER_CALL = 200  # jobs in one call of the producer


@frozen
class Plan:
    """The settings that all processes share."""

    url: str
    namespace: str
    library: str
    folder: str

    @property
    def place(self) -> Path:
        """The folder as a path."""
        return Path(self.folder)

    @property
    def ids(self) -> list[str]:
        """The modules, which are also the jobs' ids and payloads."""
        modules: list[str] = json.loads((self.place / "modules.json").read_text("utf-8"))
        return modules

    def write(self, ids: Sequence[str]) -> None:
        """Write the plan to a file: the URL may have a password, which arguments would show."""
        (self.place / "plan.json").write_text(json.dumps(attrs.asdict(self)), "utf-8")
        (self.place / "modules.json").write_text(json.dumps(ids), "utf-8")

    def log(self, worker: str) -> Path:
        """Return the path of a worker's log."""
        return self.place / f"{worker}.log"


def modules(library: Path) -> list[str]:
    """List all .py files of *library* by relative path, without installed packages."""
    found: list[str] = []
    for folder, folders, files in os.walk(library):
        folders[:] = [name for name in folders if name not in ("site-packages", "dist-packages", "__pycache__")]
        paths = (Path(folder, name) for name in files if name.endswith(".py"))
        found += [path.relative_to(library).as_posix() for path in paths if path.is_file() and os.access(path, os.R_OK)]
    return sorted(found)


def facts(source: bytes) -> bytes:
    """Describe one module as JSON: always the same bytes for the same source."""
    names: list[str] = []
    lines, state = len(source.splitlines()), "parsed"
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # some of Python's tests are like that on purpose
        state = "unparsable"
    else:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names.append(f"def {node.name}/{len(node.args.args)}")
            elif isinstance(node, ast.ClassDef):
                names.append(f"class {node.name}")
    classes = sum(name.startswith("class ") for name in names)
    digest = hashlib.sha256("\n".join([state, str(lines), *sorted(names)]).encode()).hexdigest()
    result = {"classes": classes, "functions": len(names) - classes, "lines": lines, "sha256": digest, "state": state}
    return json.dumps(result, sort_keys=True).encode()


def produce(plan: Plan) -> None:
    """Enqueue one job per module."""
    ids = plan.ids
    with Queue(QUEUE, url=plan.url, namespace=plan.namespace) as queue:
        for start in range(0, len(ids), JOBS_PER_CALL):
            queue.enqueue_many([NewJob(name, id=name) for name in ids[start : start + JOBS_PER_CALL]])


def single_pass(plan: Plan) -> None:
    """Do all the work without a queue."""
    results = {name: facts(Path(plan.library, name).read_bytes()).decode() for name in plan.ids}
    (plan.place / "single.json").write_text(json.dumps(results), "utf-8")


def work(plan: Plan, name: str) -> None:
    """Parse modules until stopped."""
    log = os.open(plan.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    worker = Worker(url=plan.url, name=name, heartbeat=HEARTBEAT_S, timeout=TIMEOUT_S, namespace=plan.namespace)

    @worker.handler(QUEUE, concurrency=2, retry=Retry(attempts=5))
    def parse(job: Job) -> bytes:
        os.write(log, f"{json.dumps([job.id, job.attempt])}\n".encode())  # unbuffered: it is there however we end
        return facts(Path(plan.library, job.payload.decode()).read_bytes())

    worker.run()


class Run:
    """One demonstration, from the first process to the last."""

    def __init__(self, plan: Plan, queue: Queue, show: Show) -> None:
        self.plan, self.queue, self.show = plan, queue, show
        self.total = show.total
        self.killed: Killed | None = None
        self.seconds = 0.0
        self.completions: list[str] = []  # the ids of jobs, by the events of the queue
        self._processes: dict[str, Process] = {}

    def go(self) -> None:
        """Start everything, kill one worker half-way, and wait until all is done."""
        with self.queue.events(["completed"]) as events:
            collector = threading.Thread(target=lambda: self.completions.extend(event.id or "" for event in events))
            collector.start()
            try:
                self._run()
                until = time.monotonic() + EVENTS_WITHIN_S
                while len(self.completions) < self.total and time.monotonic() < until:
                    time.sleep(0.02)
            finally:
                end(self._processes.values())
                events.close()
                collector.join()

    def _run(self) -> None:
        start = moved = time.monotonic()
        with ThreadPoolExecutor(1) as starter:  # here a signal may come between a start and the note of it
            list(starter.map(self._start, ("producer", "single", *WORKERS)))
        before = 0
        while True:
            counts, now = self.queue.counts(), time.monotonic()
            self.show.update(counts, now - start)
            if counts.completed != before:
                before, moved = counts.completed, now
            if self.killed is None and counts.completed * 2 >= self.total:
                self.killed = self._strike(counts)
            ended = self._ended()
            if "producer" in ended and counts.present == counts.dead:
                break
            if now - moved > STALL_S:
                raise HeadraceError(f"no job was completed for {STALL_S:g} s: {counts}")
            time.sleep(0.02)
        self.seconds = time.monotonic() - start
        while "single" not in self._ended():
            self.show.update(counts, time.monotonic() - start, "waiting for the single pass")
            time.sleep(0.02)

    def _start(self, role: str) -> None:
        with (self.plan.place / f"{role}.err").open("wb") as errors:
            self._processes[role] = Process.start(["-m", "headrace._cli.demo", role, self.plan.folder], errors)

    def _ended(self) -> set[str]:
        """Return the processes that ended as expected. Raises `HeadraceError` if another one ended."""
        ended = {role for role, process in self._processes.items() if process.popen.poll() is not None}
        for role in ended - {self.killed.name if self.killed else ""}:
            if (code := self._processes[role].popen.returncode) != 0 or role in WORKERS:
                said = (self.plan.place / f"{role}.err").read_text("utf-8", "replace").strip()
                raise HeadraceError(f"the {role} process ended with status {code}: {said[-2000:]}")
        return ended

    def _strike(self, counts: Counts) -> Killed | None:
        """Kill the worker that holds the most jobs; suspend it first, so that it still holds them."""
        name = max(WORKERS, key=self._leased)
        process = self._processes[name]
        process.signal(signal.SIGSTOP)
        leased = self._leased(name)
        if not leased:
            process.signal(signal.SIGCONT)
            return None
        process.signal(signal.SIGKILL)
        process.popen.wait()
        return Killed(name, process.popen.pid, leased, counts.completed)

    def _leased(self, name: str) -> int:
        return sum(worker.leased for worker in self.queue.workers() if worker.name.startswith(f"{name}."))

    def evidence(self) -> Evidence:
        """Gather the results, the counts and the logs."""
        expected: dict[str, str] = json.loads((self.plan.place / "single.json").read_text("utf-8"))
        kept = self.queue.results(expected)
        logs = {name: read_log(self.plan.log(name)) for name in WORKERS}
        return Evidence(
            expected,
            {job: result.decode() for job, result in kept.items()},
            self.queue.counts(),
            [run for log in logs.values() for run in log],
            self.completions,
            self.killed,
        )


def demo(url: str | None = None, limit: int | None = None) -> int:
    """Run the demonstration on a private server, or on the one at *url*; return the exit code."""
    library = Path(sysconfig.get_path("stdlib"))
    ids = modules(library)[:limit]
    if not ids:
        raise ConfigurationError(f"no modules in {library}: this Python keeps its standard library somewhere else")
    from rich.console import Console  # here: no other command needs it as it starts

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    with terminated(), ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-"))
        address = url or f"embedded:{folder}/server"
        plan = Plan(address, f"demo-{secrets.token_hex(6)}", str(library), folder)
        plan.write(ids)
        client = stack.enter_context(connected(address))
        if url is not None:
            stack.callback(_clean, client, plan.namespace)
        queue = stack.enter_context(Queue(QUEUE, client=client, namespace=plan.namespace))
        show = Show(console, len(ids), [plan.log(name) for name in WORKERS])
        run = Run(plan, queue, show)
        console.print(f"{len(ids):,} modules of {library}; a producer, {len(WORKERS)} workers, and a single pass")
        with show.live():
            run.go()
        return report(console, run.evidence(), run.seconds)


def _clean(client: redis.Redis, namespace: str) -> None:
    """Remove every key of the demo's own namespace."""
    keys: Any = client  # scan_iter is half annotated
    try:
        for key in list(keys.scan_iter(f"{namespace}:*", count=1000)):
            keys.unlink(key)
    except redis.RedisError as error:
        say(f"the demo's keys, {namespace}:*, could not be removed: {error}")


@contextmanager
def terminated() -> Generator[None, None, None]:
    """Handle SIGTERM like Ctrl-C: clean up, then end."""

    def interrupt(_number: int, _frame: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> None:
    """Play one role; the parent starts us."""
    role, folder, link = sys.argv[1:]
    follow(int(link))
    plan = Plan(**json.loads(Path(folder, "plan.json").read_text("utf-8")))
    warnings.simplefilter("ignore")  # old modules have much to be warned of
    if role == "producer":
        produce(plan)
    elif role == "single":
        single_pass(plan)
    else:
        work(plan, role)


if __name__ == "__main__":
    main()
