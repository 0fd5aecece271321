"""TLS in front of any server: a proxy with a certificate, so that no server has to be built with it."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

import trustme


class TLSProxy:
    """Ends TLS on a loopback port and forwards to the unix socket at *target*; a context manager.

    Its certificate is for *name*, from an authority of its own, whose certificate is the file *ca_path*.
    """

    port: int

    def __init__(self, target: str, folder: Path, name: str = "localhost") -> None:
        self.ca_path = folder / "ca.pem"
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority = trustme.CA()
        authority.issue_cert(name).configure_cert(self._context)
        authority.cert_pem.write_to_path(str(self.ca_path))
        self._connections: set[asyncio.Task[None]] = set()
        self._listening, self._ended = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name="tls-proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(10), "the TLS proxy does not listen"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        listener = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._context)
        self.port = listener.sockets[0].getsockname()[1]
        self._listening.set()
        await self._ended.wait()
        listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        from_server, to_server = await asyncio.open_unix_connection(self._target)
        ways = [asyncio.create_task(_copy(*way)) for way in ((reader, to_server), (from_server, writer))]
        with suppress(asyncio.CancelledError):
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for end in (to_server, writer):
            end.transport.abort()
        await asyncio.gather(*ways)
        self._connections.discard(task)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # also ssl.SSLError: the other end may leave as it likes
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
