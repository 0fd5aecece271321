"""A process of `headrace work`, which loads a worker and runs it. It is run as `python -m
headrace.console.cli.child`.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import reduce
from typing import Any

import redis
from attrs import asdict, evolve, frozen

from headrace import AsyncWorker, Queue, Worker
from headrace.console.cli.console import FAILED, drop_unwritten, module_of, say, say_in_json, set_up
from headrace.errors import ConfigurationError, HeadraceError, requiring
from headrace.isolation import Isolation
from headrace.platform import InnerWorker, heals, reached, withhold_socket, worker_of

REFUSED = os.EX_CONFIG  # this worker cannot be loaded
AWAY = os.EX_UNAVAILABLE  # the server was away for longer than max_outage
# last lines of processes: why one has ended in good order
FINISHED, SIGNALLED = b"finished\n", b"signalled\n"
EXPLAINED = b"explained\n"  # the only line of one that does not work, and has said why
POLL_S = 0.1  # seconds, until the worker of a burst is registered


@frozen
class Options:
    """The options that each process gets as one argument in JSON. `None` stands for an option that
    is not given.
    """

    max_outage: float | None = None
    burst: bool = False
    metrics_port: int | None = None
    log_level: str | None = None
    log_format: str | None = None
    isolate: bool = False
    recycle_jobs: int | None = None
    recycle_mb: float | None = None

    def limits(self) -> Isolation | None:
        # of child processes; raises `ConfigurationError` or `ValueError`
        if self.isolate:
            return Isolation(recycle_jobs=self.recycle_jobs, recycle_mb=self.recycle_mb)
        if self.recycle_jobs is not None or self.recycle_mb is not None:
            raise ConfigurationError("--recycle-jobs, --recycle-mb: for child processes: --isolate")
        return None

    def set_form(self) -> None:
        if self.log_format == "json":
            say_in_json()

    def set_up_logging(self, target: str) -> None:
        done = set_up(self.log_level or "info", self.log_format or "text")
        if not done and (self.log_level or self.log_format):
            say(
                f"{target} has set up logging itself: --log-level and --log-format change nothing there",
                "WARNING",
            )


@frozen
class Identity:
    url: str | None
    namespace: str
    name: str
    queues: list[str]

    def packed(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def unpacked(cls, line: bytes) -> Identity | None:
        try:
            return cls(**json.loads(line))
        except (ValueError, TypeError):
            return None

    def open(self, name: str) -> Queue:
        with Queue(name, url=self.url, namespace=self.namespace) as plain:
            levels = plain.admin.levels()
        return Queue(name, url=self.url, namespace=self.namespace, priorities=levels)

    def registrations(self, queue: Queue) -> list[str]:
        return [
            worker.name
            for worker in queue.admin.workers()
            if worker.name.rpartition(".")[0] == self.name
        ]


def serve(port: int) -> None:
    """Serve `/metrics` on *port* of all interfaces until the process ends. Port 0 is any. Raises
    `ConfigurationError`.
    """
    with requiring("--metrics-port", "metrics"):
        import prometheus_client
        from opentelemetry import metrics
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
    if isinstance(metrics.get_meter_provider(), MeterProvider):
        raise ConfigurationError(
            "--metrics-port: the application has set up metrics itself, leave it to that"
        )
    start: Any = prometheus_client.start_http_server
    try:
        server, _ = start(port)
    except OSError as error:
        raise ConfigurationError(f"--metrics-port {port}: {error.strerror}") from None
    withhold_socket(server.socket)
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    say(f"metrics are served on port {server.server_port}")


def signal_when_empty(identity: Identity) -> threading.Event:
    """Send this process SIGTERM once its worker is registered and no job is left in its queues but
    dead letters.

    Returns an event that is set before.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            with suppress(redis.RedisError, HeadraceError, OSError), ExitStack() as stack:
                _await_empty(
                    identity, [stack.enter_context(identity.open(name)) for name in identity.queues]
                )
                over.set()
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(POLL_S)

    threading.Thread(target=watch, daemon=True).start()
    return over


def _await_empty(identity: Identity, queues: Sequence[Queue]) -> None:
    for queue in queues:
        while not identity.registrations(queue):
            time.sleep(POLL_S)
    empty = False
    while not empty:  # a job of one may enqueue into another
        for queue in queues:
            queue.admin.drain()
        empty = all(queue.admin.drain(0) for queue in queues)


def follow(number: int) -> socket.socket:
    """Take the child's end of the link. When the parent's is closed, the child sends itself
    SIGTERM."""
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


def load(target: str) -> Worker | AsyncWorker:
    module, path = module_of(target, "worker")
    try:
        worker: Any = worker_of(reduce(getattr, path.split("."), module))
    except AttributeError:
        found = [
            key
            for key in dir(module)
            if isinstance(getattr(module, key, None), (Worker, AsyncWorker))
        ]
        raise ConfigurationError(
            f"module {module.__name__!r} has no {path!r}"
            + (f"; it has {', '.join(found)}" if found else "")
        ) from None
    if not isinstance(worker, (Worker, AsyncWorker)):
        kind = (
            f"the class {worker.__name__}"
            if isinstance(worker, type)
            else f"of type {type(worker).__name__}"
        )
        raise ConfigurationError(
            f"it is {kind}; give a headrace.Worker, AsyncWorker, Tasks or AsyncTasks"
        )
    if not worker.handlers:
        raise ConfigurationError(
            "this worker has no handlers: register one with @worker.handler(queue)"
        )
    return worker


def _send(link: socket.socket, line: bytes) -> None:
    with suppress(OSError):  # the supervisor has gone
        link.send(line)


def _explain(link: socket.socket, why: str, status: int) -> int:
    say(why, "ERROR")
    _send(link, EXPLAINED)
    return status


def work(target: str, number: int, options: Options, link: socket.socket) -> int:
    """Load the worker, check that its server is there, run it, and return the exit code.

    Several processes have a *number* from 1 on. It is appended to a name that was given to the
    worker, as names are unique.
    """
    options.set_form()
    quiet = logging.NullHandler()
    # until the worker runs: one line says why it does not
    logging.getLogger("headrace").addHandler(quiet)
    with ExitStack() as stack:
        try:
            worker = load(target)
            if worker.named and number:
                worker.name += f"-{number}"
            if (limits := options.limits()) is not None:
                InnerWorker(worker).isolate(limits)
            if options.max_outage:
                worker.settings = evolve(worker.settings, max_outage=options.max_outage)
            url: str | None = InnerWorker(worker).address.target
            if options.burst and url is None:
                why = (
                    "--burst needs a worker with url=, or the server in the environment, no client="
                )
                return _explain(link, f"{target}: {why}", REFUSED)
            if options.metrics_port is not None:
                serve(options.metrics_port)
            if url is not None:  # with a client of the user's it will show
                stack.enter_context(reached(url))
        except ConfigurationError as error:
            return _explain(link, f"{target}: {error}", REFUSED)
        except HeadraceError as error:
            return _explain(link, str(error), FAILED)
        except Exception:
            traceback.print_exc()
            return _explain(link, f"{target} could not be imported", REFUSED)
        logging.getLogger("headrace").removeHandler(quiet)
        options.set_up_logging(target)
        identity = Identity(url, worker.namespace, worker.name, list(worker.handlers))
        _send(link, identity.packed())
        empty = signal_when_empty(identity) if options.burst else None
        gc.collect()
        gc.freeze()  # imported modules stay
        gc.set_threshold(50_000)  # jobs make no cycles, and 700 new objects are soon made
        try:
            worker.run()
        except (redis.RedisError, HeadraceError) as error:
            say(f"{target}: {error}", "ERROR")
            return AWAY if heals(error) else FAILED
        signalled = InnerWorker(worker).signalled and not (empty and empty.is_set())
        _send(link, SIGNALLED if signalled else FINISHED)
    return 0


if __name__ == "__main__":
    name, place, given, socket_number = sys.argv[1:]
    status = work(name, int(place), Options(**json.loads(given)), follow(int(socket_number)))
    drop_unwritten()
    sys.exit(status)
