"""Child processes, which end with their parent. `headrace work` restarts them when they die.

Each has a link to us, a socket: it sends a line when it is ready and another one when it ends in
good order, and reads the end of file when we end, however. It has a session of its own, so that
Ctrl-C in a terminal reaches us only, and we decide how to react.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import IO, Annotated, Any

import redis
import typer
from attrs import asdict, define, evolve, field

from headrace.console.cli.child import (
    AWAY,
    EXPLAINED,
    FINISHED,
    REFUSED,
    SIGNALLED,
    Identity,
    Options,
)
from headrace.console.cli.console import FAILED, WRONG, drop_unwritten, reported, say
from headrace.errors import ConfigurationError, HeadraceError, requiring
from headrace.platform import LIMITS, Address, client_of

CONNECTION_S = 10.0  # seconds that a probe's connection lasts at most, with its answer
CONNECTIONS_AT_MOST = 100  # of probes, at once


@define(eq=False)
class Process:
    popen: subprocess.Popen[bytes]
    link: socket.socket
    number: int = 0  # among the processes of one worker
    began: float = field(factory=time.monotonic)
    ready: bool = False
    reported: bool = False  # it was ready, or has ended
    identity: Identity | None = None  # of the worker that it runs
    stale: bool = False  # its modules have changed: it was sent SIGTERM
    received: bytes = b""  # on its link

    @property
    def finished(self) -> bool:
        return self.received.endswith(FINISHED)

    @property
    def signalled(self) -> bool:
        return self.received.endswith(SIGNALLED)

    def listen(self) -> None:
        with suppress(OSError):
            while read := self.link.recv(65536, socket.MSG_DONTWAIT):
                self.received += read
        if self.identity is None and b"\n" in self.received:
            self.identity = Identity.unpacked(self.received.partition(b"\n")[0])

    @classmethod
    def start(
        cls, arguments: Sequence[str], output: IO[bytes] | None = None, number: int = 0
    ) -> Process:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", *arguments, str(theirs.fileno())]
            try:
                popen = subprocess.Popen(  # noqa: S603
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        return cls(popen, ours, number)


def end(processes: Iterable[Process]) -> None:
    processes = list(processes)
    for process in processes:
        process.popen.send_signal(signal.SIGCONT)
        process.popen.send_signal(signal.SIGTERM)
        process.link.close()
    for process in processes:
        try:
            process.popen.wait(10.0)  # then it is killed
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()


@define
class Supervisor:
    targets: Sequence[str]
    processes: int
    options: Options
    reload: bool = False
    health_port: int | None = None
    _running: list[Process] = field(factory=list[Process], init=False)
    _due: list[tuple[float, int]] = field(factory=list[tuple[float, int]], init=False)
    """When to start a process, and its number."""
    _asked: int = field(default=0, init=False)
    """Signals to stop, so far."""
    _refused: bool = field(default=False, init=False)
    """Whether a process could not load the worker, and awaits a change of it."""
    _proven: set[str] = field(factory=set[str], init=False)
    """Targets of which a process was ready once. Their failures may pass."""
    _failures: int = field(default=0, init=False)
    _code: int = field(default=0, init=False)

    def run(self) -> int:
        self.options.set_form()
        with ExitStack() as stack:
            wake = stack.enter_context(_signals())
            changed = stack.enter_context(changes()) if self.reload else None
            if self.health_port is not None:
                stack.callback(Health(self.health_port, self._unready).close)
            try:
                self._due = [(0.0, number) for number in self._firsts()]
                while self._running or self._due or self._refused:
                    self._start_due()
                    self._listen(wake, changed)
                    for process in list(self._running):
                        if (status := process.popen.poll()) is not None:
                            self._ended(process, status)
            finally:
                end(self._running)  # none, unless we fail
        return self._code

    def _target(self, number: int) -> str:
        return self.targets[(number - 1) // self.processes]

    def _firsts(self) -> list[int]:
        """Return the numbers of the first process of each target, and of all processes of proven
        targets.

        The others begin when the first is ready, because all of a target would be refused alike.
        """
        every = range(1, self.processes * len(self.targets) + 1)
        return [
            n for n in every if (n - 1) % self.processes == 0 or self._target(n) in self._proven
        ]

    def _unready(self) -> str:
        if self._asked:
            return "stopping"
        ready = [process for process in list(self._running) if process.ready]
        wanted = self.processes * len(self.targets)
        if len(ready) < wanted:
            return f"{len(ready)} of {wanted} processes are ready"
        urls = {process.identity.url for process in ready if process.identity}
        return next((reason for url in urls if (reason := away(url))), "")

    def _start_due(self) -> None:
        now = time.monotonic()
        for due in [due for due in self._due if due[0] <= now]:
            self._due.remove(due)
            number = (due[1] - 1) % self.processes + 1 if self.processes > 1 else 0
            port = self.options.metrics_port
            options = evolve(self.options, metrics_port=port + due[1] - 1 if port else port)
            arguments = [self._target(due[1]), str(number), json.dumps(asdict(options))]
            self._running.append(
                Process.start(["-m", "headrace.console.cli.child", *arguments], number=due[1])
            )

    def _listen(self, wake: socket.socket, changed: socket.socket | None) -> None:
        """Wait for a signal, for a change, for a process to be ready, or for the time of the next
        start. A death is a signal.
        """
        unready = {process.link: process for process in self._running if not process.reported}
        timeout = max(0.0, min(self._due)[0] - time.monotonic()) if self._due else None
        for link in _readable([wake, *([] if changed is None else [changed]), *unready], timeout):
            if link is wake:
                for number in wake.recv(4096):
                    if number != signal.SIGCHLD:
                        self._stop()
            elif link not in unready:
                self._start_again(os.fsdecode(link.recv(65536)).split("\n")[:-1])
            else:
                process = unready[link]
                process.reported = True
                process.listen()
                if process.identity is not None:
                    self._ready(process)

    def _ready(self, process: Process) -> None:
        process.ready = True
        target = self._target(process.number)
        self._say("process_ready", process, f"works on {target}")
        if target not in self._proven:
            self._proven.add(target)
            if not self._asked:
                self._due += [(0.0, number + process.number) for number in range(1, self.processes)]

    def _start_again(self, modules: Sequence[str]) -> None:
        if self._asked:
            return
        self._say("reload", None, f"{', '.join(modules)} changed: processes are started again")
        self._refused = False
        there = {process.number for process in self._running}
        self._due = [(0.0, number) for number in self._firsts() if number not in there]
        for process in self._running:
            if not process.stale:
                process.stale = True
                process.popen.send_signal(signal.SIGTERM)

    def _ended(self, process: Process, status: int) -> None:
        self._running.remove(process)
        process.listen()
        process.link.close()
        orderly = status == 0 and (process.finished or process.signalled)
        if not orderly and status != AWAY and process.identity is not None:
            declare_dead(process.identity)
        how = (
            f"was killed by {signal.Signals(-status).name}"
            if status < 0
            else f"ended with status {status}"
        )
        if orderly:
            how = (
                "has stopped by itself"
                if process.finished
                else "has stopped on a signal that was sent to it alone"
            )
        if process.stale and not self._asked:
            self._due.append((0.0, process.number))
        elif self._asked:
            if not orderly and status not in (-signal.SIGTERM, -signal.SIGINT):
                self._say("process_ended", process, how)
                self._code = FAILED
        elif orderly and process.finished:
            self._say("process_ended", process, how)
        elif status == AWAY:
            self._code = FAILED
            self._stop()
        elif status == REFUSED and self.reload:
            self._refused = True
        elif self._target(process.number) not in self._proven:
            self._code = WRONG if status == REFUSED else FAILED
            if process.received != EXPLAINED:
                self._say("process_ended", process, how)
            if self._running or self._due:  # other workers
                self._stop()
        else:
            now = time.monotonic()
            self._failures = (
                0 if process.ready and now - process.began >= 10.0 else self._failures + 1
            )
            # the longest pause before a new start
            pause = 0.0 if not self._failures else min(30.0, 0.05 * 2**self._failures)
            again = "another is started" + (f" in {pause:.1f} s" if pause >= 1 else "")
            self._say("process_ended", process, f"{how}; {again}")
            self._due.append((now + pause, process.number))

    def _stop(self) -> None:
        """Stop more firmly at each call. The first lets handlers finish, the second gives their
        jobs back, the third kills.
        """
        self._asked += 1
        self._due.clear()
        self._refused = False
        if self._asked == 1:
            words = "stopping: jobs under way are finished; a second signal gives them back, a third kills"
            self._say("stopping", None, words)
        # Different signals, as two of one kind may be delivered as one.
        number = {1: signal.SIGTERM, 2: signal.SIGINT}.get(self._asked, signal.SIGKILL)
        for process in self._running:
            process.popen.send_signal(number)

    def _say(self, event: str, process: Process | None, words: str) -> None:
        if process is not None:
            words = f"process {process.popen.pid} {words}"
        say(words, event=event, pid=None if process is None else process.popen.pid)


def _readable(sources: Sequence[socket.socket], timeout: float | None) -> list[Any]:
    with selectors.DefaultSelector() as selector:
        for source in sources:
            selector.register(source, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(timeout)]


@contextmanager
def _signals() -> Generator[socket.socket, None, None]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    numbers = [signal.SIGCHLD, signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    handlers = {number: signal.signal(number, _nothing) for number in numbers}
    try:
        yield ours
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        ours.close()
        theirs.close()


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Ignore the signal, as the wakeup socket delivers it."""


LogLevel = StrEnum("LogLevel", ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"])


LogFormat = StrEnum("LogFormat", ["TEXT", "JSON"])


def work(
    targets: Annotated[list[str], typer.Argument(metavar="MODULE:WORKER", show_default=False)],
    processes: Annotated[
        int, typer.Option("--processes", "-p", min=1, max=1000, help="How many for each.")
    ] = 1,
    url: Annotated[
        str | None, typer.Option(help="For a worker that names no server: sets HEADRACE_URL.")
    ] = None,
    max_outage: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            show_default=False,
            help="Seconds to wait for a server that went away; else for ever.",
        ),
    ] = None,
    burst: Annotated[
        bool,
        typer.Option(
            "--burst", help="End when only dead letters are left; delayed jobs are waited for."
        ),
    ] = False,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Finish jobs and start again when a module here changes."),
    ] = False,
    health_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            show_default=False,
            help="Serve /live and /ready there: 200, or 503 and why.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            show_default=False,
            help="Serve /metrics there, each process one port on (extra metrics).",
        ),
    ] = None,
    isolate: Annotated[
        bool,
        typer.Option(
            "--isolate", help="Run each handler in child processes, which are killed at deadlines."
        ),
    ] = False,
    recycle_jobs: Annotated[
        int | None,
        typer.Option(min=1, show_default=False, help="Replace a child process after so many jobs."),
    ] = None,
    recycle_mb: Annotated[
        float | None,
        typer.Option(
            min=64, show_default=False, help="Replace a child process that has more MiB of memory."
        ),
    ] = None,
    build: Annotated[
        str | None,
        typer.Option(
            show_default=False, help="The version of the code, of workers that name none."
        ),
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            case_sensitive=False,
            show_default=False,
            help="The least level that is logged: info, if not given.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            case_sensitive=False,
            show_default=False,
            help="text, if not given; json: an object a line.",
        ),
    ] = None,
) -> None:
    """Run workers in processes. One that dies is started again.

    MODULE is imported from the working directory or Python's path. WORKER is a headrace.Worker or
    AsyncWorker in it, or a Tasks or AsyncTasks, for which a worker is made. If
    DJANGO_SETTINGS_MODULE is set, Django is set up first.

    A process that dies is started again at once, or after a pause of up to 30 seconds if deaths
    follow each other. Any end that was not asked for is a death, also with status 0 (a handler that
    calls exit), and after a signal to one process alone, which first finishes its jobs. A process
    whose program calls worker.stop() is not started again.

    The queues are told of a death at once, so the jobs are at the front before a heartbeat is
    missed. Queues of a worker with client= find out by its heartbeat. A worker with a name gets a
    number in each of several processes (mail-1, mail-2), which stays the same after a death.

    On SIGTERM, SIGINT (Ctrl-C) or SIGHUP jobs under way are finished, on a second signal they are
    given back, on a third the processes are killed. If this process is killed, its workers finish
    their jobs and end. If the first process of a worker cannot start, the command says why and
    ends.

    With --isolate each handler runs in child processes of its worker, as many as there are
    processors, or its concurrency. Persistent handlers do not. A handler with isolate= keeps its
    own settings.

    --reload is for development (extra reload). A module that does not load waits for the next
    change.

    The log lines of all loggers go to standard error. If that takes no more (a closed pipe, a full
    disk), lines are dropped and the work goes on. An application that sets up logging when it is
    imported is left alone. A line in JSON has time, level, logger, event, message, process, the
    fields of the event, and error and traceback for exceptions. So have the command's own lines
    (process_ready, process_ended, reload, stopping).

    --health-port listens on all interfaces. It is live while it runs. It is ready when all
    processes work and the server answers, until it is told to stop. With --metrics-port an
    application that sets up OpenTelemetry's metrics itself is refused. Port 0 is any free port,
    which is printed.
    """
    with reported():
        if url is not None:
            os.environ["HEADRACE_URL"] = url
        if build is not None:
            os.environ["HEADRACE_BUILD"] = build
        options = Options(
            max_outage,
            burst,
            metrics_port,
            log_level,
            log_format,
            isolate,
            recycle_jobs,
            recycle_mb,
        )
        options.limits()  # refuses wrong ones
        status = Supervisor(
            list(dict.fromkeys(targets)), processes, options, reload, health_port
        ).run()
        drop_unwritten()
        raise typer.Exit(status)


def declare_dead(identity: Identity) -> None:
    """Give the jobs of a process that has ended back to its queues. Nothing is said if the server
    does not answer."""
    late = threading.Event()

    def declare() -> None:
        with suppress(redis.RedisError, HeadraceError, OSError):
            for name in identity.queues if identity.url is not None else ():
                with identity.open(name) as queue:
                    for worker in identity.registrations(queue):
                        if not late.is_set():
                            queue.admin.fail_worker(worker)

    thread = threading.Thread(target=declare, daemon=True)
    thread.start()
    thread.join(LIMITS.courtesy_s)  # later, the other workers find out
    late.set()  # another process may have the name from here on


@contextmanager
def changes() -> Generator[socket.socket, None, None]:
    """Yield a socket that delivers the names of modules below the working directory that have
    changed, a line each."""
    with requiring("--reload", "reload"):
        from watchfiles import PythonFilter, watch
    ours, theirs = socket.socketpair()
    over = threading.Event()

    def follow() -> None:
        here = Path.cwd()
        for batch in watch(
            here, watch_filter=PythonFilter(), stop_event=over, raise_interrupt=False
        ):
            names = sorted(os.path.relpath(path, here) for _, path in batch)
            theirs.send(os.fsencode("".join(f"{name}\n" for name in names[:3])))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield ours
    finally:
        over.set()
        thread.join()
        ours.close()
        theirs.close()


# -- health ----------------------------------------------------------------------------------------


class Health:
    """An HTTP server on all interfaces, which runs until `close`. *reason* returns why the worker
    is not ready, or ''.

    Raises `ConfigurationError` if the port can't be had.
    """

    def __init__(self, port: int, reason: Callable[[], str]) -> None:
        self._reason = reason
        try:
            self._socket = socket.create_server(("", port), backlog=CONNECTIONS_AT_MOST)
        except OSError as error:
            raise ConfigurationError(f"--health-port {port}: {error.strerror}") from None
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._asking: asyncio.Future[str] | None = None
        self._connections: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        say(f"health is served on port {self.port}")

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(CONNECTION_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._met, sock=self._socket)
        with ThreadPoolExecutor(1, "headrace-health") as self._asker:
            await self._over.wait()
            server.close()
            for connection in list(self._connections):
                connection.cancel()

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        if len(self._connections) >= CONNECTIONS_AT_MOST:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        self._connections[task] = None
        try:
            with suppress(TimeoutError, OSError, ValueError, asyncio.CancelledError):
                async with asyncio.timeout(CONNECTION_S):
                    writer.write(await self._answer(reader))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        method, path, *_ = [*(await reader.readline()).decode("latin-1").split(), "", ""]
        for _ in range(100):  # header lines, at most
            if not (await reader.readline()).strip():
                break
        path = path.partition("?")[0]
        if method != "GET":
            return _response(
                HTTPStatus.METHOD_NOT_ALLOWED if method else HTTPStatus.BAD_REQUEST, "give GET"
            )
        if path not in ("/live", "/ready"):
            return _response(HTTPStatus.NOT_FOUND, "give /live or /ready")
        reason = await self._unready() if path == "/ready" else ""
        return _response(
            HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, reason or "ok"
        )

    async def _unready(self) -> str:
        if self._asking is None or self._asking.done():
            self._asking = self._loop.run_in_executor(self._asker, self._reason)
        return await asyncio.shield(self._asking)


def _response(status: HTTPStatus, text: str) -> bytes:
    body = f"{text}\n".encode()
    fields = {
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": len(body),
        "Connection": "close",
    } | ({"Allow": "GET"} if status is HTTPStatus.METHOD_NOT_ALLOWED else {})
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{head}\r\n".encode() + body


def away(url: str | None) -> str:
    """Return why the server does not answer, or ''. Embedded servers are not checked, as the
    workers watch them."""
    if url is None or url.startswith("embedded:"):
        return ""
    try:
        # a probe does not wait long
        with client_of(url, socket_timeout=2.0, socket_connect_timeout=2.0) as client:
            client.ping()
    except (redis.RedisError, OSError) as error:
        return f"{Address(url).shown}: {error}"
    return ""
