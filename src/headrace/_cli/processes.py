"""Child processes: they end when we do, and `headrace work` starts its processes again when they die.

Each has a link to us, a socket: it sends a line when it is ready and another one when it ends in good order, and reads
the end of file when we end, however. It has a session of its own, so that Ctrl-C in a terminal reaches us only, and we
decide how to react.
"""

from __future__ import annotations

import gc
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import reduce
from types import FrameType
from typing import IO, Any, NoReturn

import redis
from attrs import define, evolve, field

from headrace._api.aio.worker import AsyncWorker
from headrace._api.sync.worker import Worker
from headrace._cli.burst import Burst
from headrace._cli.console import FAILED, WRONG, drop_unwritten, reached, say
from headrace._cli.deaths import Identity, declare_dead
from headrace._cli.health import Health, away
from headrace._cli.importing import module_of
from headrace._cli.logs import Logs
from headrace._cli.metrics import serve
from headrace._cli.reload import changes
from headrace._cli.serving import worker_of
from headrace._net.base.children import withhold_socket
from headrace._net.base.retries import heals
from headrace._telemetry.log import log
from headrace.errors import ConfigurationError, HeadraceError

REFUSED = 78  # EX_CONFIG: this worker cannot be loaded
AWAY = 69  # EX_UNAVAILABLE: the server was away for longer than max_outage
STABLE_AFTER_S = 10.0  # seconds after which a death counts as the first one again
END_WITHIN_S = 10.0  # seconds that a process may take to end before it is killed
COLLECT_AFTER = 50_000  # new objects after which a worker looks for cycles: jobs make none, and 700 are soon made
RESTART_PAUSE_S = 30.0  # seconds between a death and the new start, at most
LINES_BYTES = 65536  # read from a link at once
FINISHED, SIGNALLED = b"finished\n", b"signalled\n"  # last lines of processes: why one has ended in good order
EXPLAINED = b"explained\n"  # the only line of one that does not work, and has said why


@define(eq=False)
class Process:
    """A child process, and our end of its link."""

    popen: subprocess.Popen[bytes]
    link: socket.socket
    number: int = 0  # among the processes of one worker
    began: float = field(factory=time.monotonic)
    ready: bool = False
    reported: bool = False  # it was ready, or has ended
    identity: Identity | None = None  # of the worker that it runs
    stale: bool = False  # its modules have changed: it is told to stop
    heard: bytes = b""  # on its link

    @property
    def finished(self) -> bool:
        """Whether its program ended it: by `stop()`, or as its burst is over."""
        return self.heard.endswith(FINISHED)

    @property
    def signalled(self) -> bool:
        """Whether it has ended in good order on a signal."""
        return self.heard.endswith(SIGNALLED)

    def listen(self) -> None:
        """Read messages from the link without waiting."""
        with suppress(OSError):
            while read := self.link.recv(LINES_BYTES, socket.MSG_DONTWAIT):
                self.heard += read
        if self.identity is None and b"\n" in self.heard:
            self.identity = Identity.unpacked(self.heard.partition(b"\n")[0])

    @classmethod
    def start(cls, arguments: Sequence[str], output: IO[bytes] | None = None, number: int = 0) -> Process:
        """Start Python with *arguments* and, after them, the file number of its end of the link."""
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

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self.popen.send_signal(number)


def end(processes: Iterable[Process]) -> None:
    """Stop the processes, by force if need be."""
    processes = list(processes)
    for process in processes:
        process.signal(signal.SIGCONT)
        process.signal(signal.SIGTERM)
        process.link.close()
    for process in processes:
        try:
            process.popen.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()


def follow(number: int) -> socket.socket:
    """Take the child's end of the link. When the parent's is closed, the child sends itself SIGTERM."""
    link = socket.socket(fileno=number)
    os.set_inheritable(number, False)
    withhold_socket(link)

    def watch() -> None:
        with suppress(OSError):
            while link.recv(1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    return link


class Supervisor:
    """Keeps *processes* processes running each of the workers that *targets* name; processes are numbered from 1."""

    def __init__(
        self, targets: Sequence[str], processes: int, max_outage: float | None = None,
        logs: Logs | None = None,
        burst: bool = False, reload: bool = False, health_port: int | None = None, metrics_port: int | None = None,
    ) -> None:  # fmt: skip
        self.targets, self.processes, self.max_outage = targets, processes, max_outage
        self.logs = Logs() if logs is None else logs
        self.burst, self.reload, self.health_port, self.metrics_port = burst, reload, health_port, metrics_port
        self._running: list[Process] = []
        self._due: list[tuple[float, int]] = []  # when to start a process, and its number
        self._asked = 0  # signals to stop, so far
        self._refused = False  # a process could not load the worker, and awaits a change of it
        self._proven: set[str] = set()  # targets of which a process was ready once: a failure may pass
        self._failures = 0
        self._code = 0

    def run(self) -> int:
        """Run until all have ended, on request or by themselves; return the exit code."""
        self.logs.apply_to_us()
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
        """Return the target of a process."""
        return self.targets[(number - 1) // self.processes]

    def _firsts(self) -> list[int]:
        """Return the numbers of the first process of each target, and of all processes of proven targets.

        The others begin when the first is ready: they would all refuse the same.
        """
        every = range(1, self.processes * len(self.targets) + 1)
        return [n for n in every if (n - 1) % self.processes == 0 or self._target(n) in self._proven]

    def _unready(self) -> str:
        """Return why this worker is not ready, or ''."""
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
            bound = "" if self.max_outage is None else str(self.max_outage)
            arguments = ["-m", "headrace._cli.processes", self._target(due[1]), str(number), bound]
            arguments += ["burst" if self.burst else "", self._metrics_port(due[1]), self.logs.packed()]
            self._running.append(Process.start(arguments, number=due[1]))

    def _metrics_port(self, number: int) -> str:
        port = self.metrics_port
        return "" if port is None else str(port + number - 1 if port else 0)

    def _listen(self, wake: socket.socket, changed: socket.socket | None) -> None:
        """Wait for signals (a death is one), changes, processes to be ready, and for the time of the next start."""
        unready = {process.link: process for process in self._running if not process.reported}
        timeout = max(0.0, min(self._due)[0] - time.monotonic()) if self._due else None
        for link in _readable([wake, *([] if changed is None else [changed]), *unready], timeout):
            if link is wake:
                for number in wake.recv(4096):
                    if number != signal.SIGCHLD:
                        self._stop()
            elif link not in unready:
                self._start_again(os.fsdecode(link.recv(LINES_BYTES)).split("\n")[:-1])
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
        """Start all processes again, each when it has finished its jobs."""
        if self._asked:
            return
        self._say("reload", None, f"{', '.join(modules)} changed: processes are started again")
        self._refused = False
        there = {process.number for process in self._running}
        self._due = [(0.0, number) for number in self._firsts() if number not in there]
        for process in self._running:
            if not process.stale:
                process.stale = True
                process.signal(signal.SIGTERM)

    def _ended(self, process: Process, status: int) -> None:
        self._running.remove(process)
        process.listen()
        process.link.close()
        orderly = status == 0 and (process.finished or process.signalled)
        if not orderly and status != AWAY and process.identity is not None:
            declare_dead(process.identity)
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        if orderly:
            how = "has stopped by itself" if process.finished else "has stopped on a signal that was sent to it alone"
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
            if process.heard != EXPLAINED:
                self._say("process_ended", process, how)
            if self._running or self._due:  # other workers
                self._stop()
        else:
            now = time.monotonic()
            self._failures = 0 if process.ready and now - process.began >= STABLE_AFTER_S else self._failures + 1
            pause = 0.0 if not self._failures else min(RESTART_PAUSE_S, 0.05 * 2**self._failures)
            again = "another is started" + (f" in {pause:.1f} s" if pause >= 1 else "")
            self._say("process_ended", process, f"{how}; {again}")
            self._due.append((now + pause, process.number))

    def _stop(self) -> None:
        """Stop, by the number of calls: 1 lets handlers finish, 2 gives their jobs back, 3 kills."""
        self._asked += 1
        self._due.clear()
        self._refused = False
        if self._asked == 1:
            words = "stopping: jobs under way are finished; a second signal gives them back, a third kills"
            self._say("stopping", None, words)
        number = {1: signal.SIGTERM, 2: signal.SIGINT}.get(
            self._asked, signal.SIGKILL
        )  # two kinds never merge into one
        for process in self._running:
            process.signal(number)

    def _say(self, event: str, process: Process | None, words: str) -> None:
        if process is not None:
            words = f"process {process.popen.pid} {words}"
        say(words, event=event, pid=None if process is None else process.popen.pid)


def _readable(sources: Sequence[socket.socket], timeout: float | None) -> list[Any]:
    """Return the *sources* that can be read, or have ended, as soon as there is one, or the time is over."""
    with selectors.DefaultSelector() as selector:
        for source in sources:
            selector.register(source, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(timeout)]


@contextmanager
def _signals() -> Generator[socket.socket, None, None]:
    """Yield a socket that delivers the numbers of the signals we get."""
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
    """Ignore the signal: the wakeup socket delivers it."""


def load(target: str) -> Worker | AsyncWorker:
    """Import *target*, MODULE:NAME: a worker, or tasks. Raises `ConfigurationError` if there is none."""
    module, path = module_of(target, "worker")
    try:
        worker: Any = worker_of(reduce(getattr, path.split("."), module))
    except AttributeError:
        found = [key for key in dir(module) if isinstance(getattr(module, key, None), (Worker, AsyncWorker))]
        raise ConfigurationError(
            f"module {module.__name__!r} has no {path!r}" + (f"; it has {', '.join(found)}" if found else "")
        ) from None
    if not isinstance(worker, (Worker, AsyncWorker)):
        kind = f"the class {worker.__name__}" if isinstance(worker, type) else f"of type {type(worker).__name__}"
        raise ConfigurationError(f"it is {kind}; give a headrace.Worker, AsyncWorker, Tasks or AsyncTasks")
    if not worker.handlers:
        raise ConfigurationError("this worker has no handlers: register one with @worker.handler(queue)")
    return worker


def _refuse(why: str) -> NoReturn:
    raise ConfigurationError(why)


def _tell(link: socket.socket, line: bytes) -> None:
    with suppress(OSError):  # the supervisor has gone
        link.send(line)


def _explain(link: socket.socket, why: str, status: int) -> int:
    say(why, "ERROR")
    _tell(link, EXPLAINED)
    return status


def work(
    target: str, number: int, max_outage: str, burst: str, metrics_port: str, logs: Logs, link: socket.socket
) -> int:
    """Load the worker, check that its server is there, and run it; return the exit code.

    *number*: from 1 on if there are several; it is appended to a name that was given to the worker, which must be
    unique.
    """
    logs.apply_to_us()
    quiet = logging.NullHandler()
    log.addHandler(quiet)  # until we work: one line says why we don't
    with ExitStack() as stack:
        try:
            worker = load(target)
            if worker.named and number:
                worker.name += f"-{number}"
            if max_outage:
                worker.settings = evolve(worker.settings, max_outage=float(max_outage))
            url: str | None = worker._address.target  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            if burst and url is None:
                _refuse("--burst needs a worker with url=, or the server in the environment, no client=")
            if metrics_port:
                serve(int(metrics_port))
            if url is not None:  # with a client of the user's it will show
                stack.enter_context(reached(url))
        except ConfigurationError as error:
            return _explain(link, f"{target}: {error}", REFUSED)
        except HeadraceError as error:
            return _explain(link, str(error), FAILED)
        except Exception:
            traceback.print_exc()
            return _explain(link, f"{target} could not be imported", REFUSED)
        log.removeHandler(quiet)
        logs.apply_to_logging(target)
        identity = Identity.of(worker, url)
        _tell(link, identity.packed())
        until_empty = Burst(identity)
        if burst:
            until_empty.begin()
        gc.collect()
        gc.freeze()  # imported modules stay
        gc.set_threshold(COLLECT_AFTER)
        try:
            worker.run()
        except (redis.RedisError, HeadraceError) as error:
            say(f"{target}: {error}", "ERROR")
            return AWAY if heals(error) else FAILED
        finished = until_empty.over or not worker._signalled  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        _tell(link, FINISHED if finished else SIGNALLED)
    return 0


if __name__ == "__main__":
    name, place, bound, until, port, words, socket_number = sys.argv[1:]
    status = work(name, int(place), bound, until, port, Logs.unpacked(words), follow(int(socket_number)))
    drop_unwritten()
    sys.exit(status)
