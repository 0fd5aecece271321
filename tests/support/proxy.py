"""A proxy in front of a server that breaks connections at a given byte."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from typing import Self

from attrs import define, field

from tests.support.awaiting import PATIENCE


@define(eq=False)
class _Pair:
    """A client's connection and ours to the server."""

    client: socket.socket
    server: socket.socket


@define(eq=False)
class Proxy:
    """Listens on a loopback port and forwards to the unix socket at *target*, in its own thread.

    What is counted and kept (`requests`, `replies`) begins at `reset` or when a fault is armed.
    """

    target: str
    port: int = 0
    requests: bytearray = field(factory=bytearray)
    replies: bytearray = field(factory=bytearray)
    fired: bool = False
    connections: int = 0
    tap: Callable[[bytes], None] | None = None
    """Called with each piece of a request once it was forwarded."""
    _cut: tuple[str, int] | None = None
    _held: list[tuple[socket.socket, bytes]] = field(factory=list)
    _holding: bool = False
    _refusing: bool = False
    _mute: bool = False
    _injected: list[bytes] = field(factory=list)
    _pairs: dict[socket.socket, _Pair] = field(factory=dict)
    _lock: threading.RLock = field(factory=threading.RLock)
    _selector: selectors.BaseSelector = field(factory=selectors.DefaultSelector)
    _listener: socket.socket | None = None
    _wake: tuple[socket.socket, socket.socket] = field(factory=socket.socketpair)
    _thread: threading.Thread | None = None
    _ended: bool = False

    @property
    def url(self) -> str:
        """The URL to connect to."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self._listen()
        self._selector.register(self._wake[0], selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended = True
        self._wake[1].send(b"x")
        assert self._thread is not None
        self._thread.join(PATIENCE)
        with self._lock:
            self._deafen()
            for held, _ in self._held:
                held.close()
            self._selector.close()
            for end in self._wake:
                end.close()

    # -- faults ------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Count from here; no fault is armed."""
        with self._lock:
            self.requests, self.replies = bytearray(), bytearray()
            self._cut, self.fired, self.tap = None, False, None
            self._holding = self._refusing = self._mute = False
            self._injected, self.connections = [], 0

    def cut(self, side: str, after: int) -> None:
        """Close the connection when *after* more bytes of `"requests"` or `"replies"` have passed.

        With 0 replies a whole request is carried out and its reply is swallowed.
        """
        with self._lock:
            self.reset()
            self._cut = (side, after)

    def hold(self, *, refuse: bool = False) -> None:
        """Keep the next request back until `deliver`, and close the client's end of its connection.

        With *refuse*, refuse all others from then on.
        """
        with self._lock:
            self.reset()
            self._holding, self._refusing = True, refuse

    def deliver(self) -> None:
        """Send on what was held back, and wait until the server has answered it."""
        with self._lock:
            held, self._held = self._held, []
        for server, data in held:
            with server:
                server.settimeout(PATIENCE)
                server.sendall(data)
                assert server.recv(1 << 16)

    def mute(self) -> None:
        """Drop all replies and close nothing, until `reset`: the client runs into its timeout."""
        with self._lock:
            self.reset()
            self._mute = True

    def inject(self, error: str, times: int) -> None:
        """Answer the next *times* scripts with *error*, instead of the server."""
        with self._lock:
            self.reset()
            self._injected = [f"-{error}\r\n".encode()] * times

    def refuse(self) -> None:
        """Close everything and refuse connections, until `admit`."""
        with self._lock:
            self._deafen()

    def admit(self) -> None:
        """Accept connections again, on the same port."""
        with self._lock:
            self._listen()

    def calls(self, word: bytes) -> int:
        """Count how often *word* occurs in the requests since `reset`."""
        with self._lock:
            return self.requests.count(word)

    def said(self, word: bytes) -> bool:
        """Tell whether the server has answered with *word* since `reset`."""
        with self._lock:
            return word in self.replies

    # -- forwarding --------------------------------------------------------------------------------

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ)

    def _deafen(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        for pair in set(self._pairs.values()):
            self._close(pair)

    def _run(self) -> None:
        while True:
            ready = self._selector.select(PATIENCE)
            with self._lock:
                if self._ended:
                    return
                for key, _ in ready:
                    source = key.fileobj
                    assert isinstance(source, socket.socket)
                    if source is self._listener:
                        self._accept(source)
                    elif source in self._pairs:
                        self._forward(source, self._pairs[source])

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        self.connections += 1
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self.target)
        except OSError:
            server.close()
            client.close()
            return
        pair = _Pair(client, server)
        for end in (client, server):
            self._pairs[end] = pair
            self._selector.register(end, selectors.EVENT_READ)

    def _close(self, pair: _Pair, *, server: bool = True) -> None:
        for end in (pair.client, pair.server):
            if self._pairs.pop(end, None):
                self._selector.unregister(end)
        pair.client.close()
        if server:
            pair.server.close()

    def _forward(self, source: socket.socket, pair: _Pair) -> None:
        try:
            data = source.recv(1 << 16)
            if not data:
                self._close(pair)
                return
            self._pass(source, pair, data)
        except OSError:
            self._close(pair)

    def _pass(self, source: socket.socket, pair: _Pair, data: bytes) -> None:
        request = source is pair.client
        if request and self._holding:
            self._holding, self.fired = False, True
            self._held.append((pair.server, data))
            self._close(pair, server=False)
            if self._refusing:
                self._deafen()
            return
        if request and self._injected and b"EVALSHA" in data:
            self.requests += data
            source.sendall(self._injected[0])
            self.replies += self._injected.pop()
            return
        seen, sink = (self.requests, pair.server) if request else (self.replies, pair.client)
        broken = False
        if self._cut is not None and self._cut[0] == ("requests" if request else "replies"):
            left = self._cut[1] - len(seen)
            if len(data) >= left:
                data, broken = data[:left], True
                self._cut, self.fired = None, True
        seen += data
        if data and (request or not self._mute):
            sink.sendall(data)
        if broken:
            self._close(pair)
        if request and self.tap is not None:
            self.tap(bytes(data))
