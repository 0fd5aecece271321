"""A proxy that breaks connections at random. It swallows replies, cuts requests, or delivers them
late."""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import Self

from attrs import define, field

PATIENCE = 10.0
LATE = 1.0  # seconds until a late request arrives, at most


@define(eq=False)
class Proxy:
    """Forwards a loopback port to the unix socket at *target*, in its own thread."""

    target: str
    seed: int
    swallow: float = 0.0
    """Of so many replies, none arrives: what was asked has been done, and the connection ends."""
    cut: float = 0.0
    """Of so many requests, only the first half arrives, and the connection ends."""
    late: float = 0.0
    """Of so many requests, the connection ends, and the server gets them later all the same: after
    another try."""
    port: int = 0
    swallowed: int = 0
    delivered: int = 0
    """Late."""
    _mail: list[tuple[float, bytes]] = field(factory=list)
    _dice: random.Random = field(init=False)
    _selector: selectors.BaseSelector = field(factory=selectors.DefaultSelector)
    _peers: dict[socket.socket, socket.socket] = field(factory=dict)
    _clients: set[socket.socket] = field(factory=set)
    _listener: socket.socket = field(factory=socket.socket)
    _wake: tuple[socket.socket, socket.socket] = field(factory=socket.socketpair)
    _thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self._dice = random.Random(self.seed)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(128)
        self.port = self._listener.getsockname()[1]
        for end in (self._listener, self._wake[0]):
            self._selector.register(end, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="chaos-proxy")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake[1].send(b"x")
        assert self._thread is not None
        self._thread.join(PATIENCE)
        while self._peers:  # two at a time
            self._close(next(iter(self._peers)))
        self._selector.close()
        for end in (self._listener, *self._wake):
            end.close()

    def calm(self) -> None:
        self.swallow = self.cut = self.late = 0.0

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(0.05 if self._mail else None):
                source = key.fileobj
                assert isinstance(source, socket.socket)
                if source is self._wake[0]:
                    return
                if source is self._listener:
                    self._accept()
                elif source in self._peers:  # not closed by an earlier one of this round
                    self._forward(source)
            self._deliver()

    def _deliver(self) -> None:
        """Send late requests, each on a connection without a reader."""
        now = time.monotonic()
        due = [data for at, data in self._mail if at <= now]
        self._mail = [mail for mail in self._mail if mail[0] > now]
        for data in due:
            with socket.socket(socket.AF_UNIX) as server, suppress(OSError):
                server.settimeout(1.0)
                server.connect(self.target)
                server.sendall(data)
                server.shutdown(socket.SHUT_WR)
                while server.recv(1 << 16):  # until it has answered all
                    pass
                self.delivered += 1

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self.target)
        except OSError:  # it is being restarted
            server.close()
            client.close()
            return
        self._clients.add(client)
        for end, other in ((client, server), (server, client)):
            end.settimeout(1.0)  # a suspended process does not read; nobody waits for it for long
            self._peers[end] = other
            self._selector.register(end, selectors.EVENT_READ)

    def _close(self, end: socket.socket) -> None:
        for one in (end, self._peers[end]):
            self._selector.unregister(one)
            del self._peers[one]
            self._clients.discard(one)
            one.close()

    def _forward(self, source: socket.socket) -> None:
        request = source in self._clients
        try:
            data = source.recv(1 << 16)
            if request and data and self._dice.random() < self.cut:
                self._peers[source].sendall(data[: len(data) // 2])
                data = b""
            if request and data and self._dice.random() < self.late:
                self._mail.append((time.monotonic() + LATE * self._dice.random(), data))
                data = b""
            if not request and data and self._dice.random() < self.swallow:
                self.swallowed += 1
                data = b""
            if data:
                self._peers[source].sendall(data)
            else:
                self._close(source)
        except OSError:
            self._close(source)
