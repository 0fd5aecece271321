"""`headrace work --health-port`: `/live` and `/ready` for probes, answered by the supervisor.

One thread has all connections. Those on which nothing comes keep no probe from being answered: there are so many
connections at most, the oldest gives way, and each has its time. A second thread asks the servers of the workers, as
that may take seconds.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus

import redis

from headrace._cli.console import say
from headrace._net.base.address import shown
from headrace._net.sync.cluster import client_of
from headrace.errors import ConfigurationError

ASKED_FOR_S = 2.0  # seconds that a server has to answer
CONNECTION_S = 10.0  # seconds that a connection lasts at most, with its answer
CONNECTIONS_AT_MOST = 100  # at once
REQUEST_BYTES = 8192  # of a line of a request
HEADERS_AT_MOST = 100  # lines
Reason = Callable[[], str]


class Health:
    """An HTTP server on all interfaces. *reason*: why the worker is not ready, or ''. It runs until `close`.

    Raises `ConfigurationError` if the port can't be had.
    """

    def __init__(self, port: int, reason: Reason) -> None:
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
        """Stop serving."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(CONNECTION_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._met, sock=self._socket, limit=REQUEST_BYTES)
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
        """Read a request, and return its answer."""
        method, path, *_ = [*(await reader.readline()).decode("latin-1").split(), "", ""]
        for _ in range(HEADERS_AT_MOST):
            if not (await reader.readline()).strip():
                break
        path = path.partition("?")[0]
        if method != "GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED if method else HTTPStatus.BAD_REQUEST, "give GET")
        if path not in ("/live", "/ready"):
            return _response(HTTPStatus.NOT_FOUND, "give /live or /ready")
        reason = await self._unready() if path == "/ready" else ""
        return _response(HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, reason or "ok")

    async def _unready(self) -> str:
        """Return why the worker is not ready, or ''. Requests that come meanwhile share the answer."""
        if self._asking is None or self._asking.done():
            self._asking = self._loop.run_in_executor(self._asker, self._reason)
        return await asyncio.shield(self._asking)


def _response(status: HTTPStatus, text: str) -> bytes:
    body = f"{text}\n".encode()
    fields = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": len(body), "Connection": "close"} | (
        {"Allow": "GET"} if status is HTTPStatus.METHOD_NOT_ALLOWED else {}
    )
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{head}\r\n".encode() + body


def away(url: str | None) -> str:
    """Return why the server does not answer, or ''. Embedded ones are looked after by the workers."""
    if url is None or url.startswith("embedded:"):
        return ""
    try:
        with client_of(url, socket_timeout=ASKED_FOR_S, socket_connect_timeout=ASKED_FOR_S) as client:
            client.ping()
    except (redis.RedisError, OSError) as error:
        return f"{shown(url)}: {error}"
    return ""
