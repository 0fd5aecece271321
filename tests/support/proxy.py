"""Proxies in front of a server. One breaks connections at a given byte, and one ends TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import trustme
from anyio.from_thread import start_blocking_portal


class Proxy(ExitStack):
    """Listens on a loopback port and forwards to the unix socket at *target*, on an event loop in
    its own thread.

    What is counted and kept (`requests`, `replies`, `connections`) begins at `reset` or when a
    fault is armed: so `proxy.requests.count(b"EVALSHA")` is the number of scripts since then.
    """

    requests: bytearray
    replies: bytearray
    connections: int
    fired: bool
    """Whether the fault has happened."""
    tap: Callable[[bytes], object] | None
    """Called with each piece of a request once it was forwarded; nothing else passes meanwhile."""

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self.target, self.port = target, 0
        self._tls = tls
        self._listener: socket.socket | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]] = []
        self._passing = asyncio.Lock()
        self._arm()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self._portal = self.enter_context(start_blocking_portal())
        self.callback(lambda: self._portal.call(self._end))
        self.admit()
        return self

    # -- faults ------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Count from here without an armed fault."""
        self._portal.call(self._arm)

    def cut(self, side: str, after: int) -> None:
        """Close the connection when *after* more bytes of `"requests"` or `"replies"` have passed.

        With 0 replies a whole request is carried out and its reply is swallowed.
        """
        self._portal.call(partial(self._arm, cut=(side, after)))

    def hold(self, *, refuse: bool = False) -> None:
        """Keep the next request back until `deliver`, and close the client's end of its connection.

        With *refuse*, refuse all others from then on.
        """
        self._portal.call(partial(self._arm, hold=True, refuse=refuse))

    def deliver(self) -> None:
        """Send the withheld bytes, and wait until the server has answered."""
        self._portal.call(self._deliver)

    def mute(self) -> None:
        """Drop all replies without a close until `reset`, so that the client runs into its
        timeout."""
        self._portal.call(partial(self._arm, mute=True))

    def inject(self, error: str, times: int) -> None:
        """Answer the next *times* scripts with *error*, instead of the server."""
        self._portal.call(partial(self._arm, injected=[f"-{error}\r\n".encode()] * times))

    def refuse(self) -> None:
        """Close everything and refuse connections, until `admit`."""
        self._portal.call(self._close)

    def admit(self) -> None:
        """Accept connections, again on the same port."""
        self._portal.call(self._listen)

    # -- on the event loop -------------------------------------------------------------------------

    def _arm(
        self,
        cut: tuple[str, int] | None = None,
        hold: bool = False,
        refuse: bool = False,
        mute: bool = False,
        injected: Sequence[bytes] = (),
    ) -> None:
        self.requests, self.replies = bytearray(), bytearray()
        self.connections, self.fired, self.tap = 0, False, None
        self._cut, self._hold, self._refuse, self._mute, self._injected = (
            cut,
            hold,
            refuse,
            mute,
            list(injected),
        )

    async def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self.connections += 1
        task = asyncio.create_task(self._connected(listener, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()
        await asyncio.sleep(0)  # so that their sockets are closed

    async def _end(self) -> None:
        await self._close()
        for _, writer, _ in self._held:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    async def _deliver(self) -> None:
        held, self._held = self._held, []
        for reader, writer, data in held:
            writer.write(data)
            assert await reader.read(1 << 16)
            writer.transport.abort()

    async def _connected(self, listener: socket.socket, connection: socket.socket) -> None:
        ends, ways = set[asyncio.StreamWriter](), list[asyncio.Task[None]]()
        try:
            reader, client = await self._streams(connection)
            ends.add(client)
            answers, server = await asyncio.open_unix_connection(self.target)
            ends.add(server)
            self._open |= ends
            if listener is self._listener:  # else it was closed meanwhile
                requests, replies = (
                    self._requests(reader, client, answers, server),
                    self._replies(answers, client),
                )
                ways += [asyncio.create_task(requests), asyncio.create_task(replies)]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                ends &= self._open  # a request that is held keeps its connection
        except OSError:  # no TLS, or no server
            pass
        finally:
            for end in ends:
                end.transport.abort()
            self._open -= ends
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _streams(
        self, connection: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Make streams of an accepted connection, when its TLS is ready."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._tls
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _requests(
        self, source: asyncio.StreamReader, client: Any, answers: Any, server: Any
    ) -> None:
        while data := await source.read(1 << 16):
            async with self._passing:
                if self._hold:
                    self._hold, self.fired = False, True
                    self._held.append((answers, server, data))
                    self._open.discard(server)
                    if self._refuse:
                        await self._close()
                    return
                if self._injected and b"EVALSHA" in data:
                    self.requests += data
                    self.replies += self._injected[0]
                    client.write(self._injected.pop())
                    continue
                goes_on = await self._pass("requests", data, self.requests, server)
                if self.tap is not None:
                    await asyncio.to_thread(self.tap, data)
                if not goes_on:
                    return

    async def _replies(self, source: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            async with self._passing:
                if not await self._pass(
                    "replies", data, self.replies, None if self._mute else client
                ):
                    return

    async def _pass(
        self, side: str, data: bytes, passed: bytearray, sink: asyncio.StreamWriter | None
    ) -> bool:
        """Forward the bytes that may pass, and tell whether the connection stays."""
        cut = (
            self._cut is not None
            and self._cut[0] == side
            and len(passed) + len(data) >= self._cut[1]
        )
        if cut:
            assert self._cut is not None
            data = data[: self._cut[1] - len(passed)]
            self._cut, self.fired = None, True
        passed += data
        if data and sink is not None:
            sink.transport.set_write_buffer_limits(high=1, low=0)  # `drain` waits until all is sent
            sink.write(data)
            await sink.drain()
        return not cut


class TLSProxy(Proxy):
    """Ends TLS, so that no server has to be built with it. Its certificate is for *name*.

    The certificate is from an authority of its own, whose certificate is the file *ca_path*.
    """

    def __init__(self, target: str, folder: Path, name: str = "localhost") -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        super().__init__(target, context)
        self.ca_path = folder / "ca.pem"
        authority = trustme.CA()
        authority.issue_cert(name).configure_cert(context)
        authority.cert_pem.write_to_path(str(self.ca_path))
