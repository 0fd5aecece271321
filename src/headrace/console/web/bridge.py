"""The pages in programs that have no event loop. They run on one of their own, in a thread. `wsgi`
is for WSGI.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from attrs import define, field
from starlette.types import ASGIApp, Message

from headrace.console.web.app import FORM_BYTES
from headrace.platform import forks

WITHIN_S = 30.0  # seconds that a page may take
Answer = tuple[int, list[tuple[str, str]], bytes]


@define(eq=False)
class Bridge:
    app: ASGIApp
    _lock: Any = field(factory=forks.lock, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _process: int = field(default=0, init=False)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="headrace-pages", daemon=True
                )
                self._thread.start()
            return self._loop

    def ask(self, scope: dict[str, Any], body: bytes) -> Answer:
        return asyncio.run_coroutine_threadsafe(self._asked(scope, body), self._running()).result(
            WITHIN_S
        )

    async def _asked(self, scope: dict[str, Any], body: bytes) -> Answer:
        answer = bytearray()
        status, headers = 500, list[tuple[str, str]]()

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [
                    (name.decode("latin-1"), value.decode("latin-1"))
                    for name, value in message["headers"]
                ]
            else:
                answer.extend(message.get("body", b""))

        await self.app(scope, receive, send)
        return status, headers, bytes(answer)

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        given = environ.get("CONTENT_LENGTH") or "0"
        # one more: the pages refuse it
        length = min(int(given), FORM_BYTES + 1) if given.isdecimal() else 0
        status, headers, body = self.ask(scope_of(environ), environ["wsgi.input"].read(length))
        start(f"{status} {HTTPStatus(status).phrase}", headers)
        return [body]

    def close(self) -> None:
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is not None and thread is not None and self._process == os.getpid():
            closing: Any = getattr(self.app, "close", None)
            if closing is not None:
                asyncio.run_coroutine_threadsafe(closing(), loop).result(WITHIN_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def scope_of(environ: dict[str, Any]) -> dict[str, Any]:
    root, inside = (
        environ.get(name, "").encode("latin-1") for name in ("SCRIPT_NAME", "PATH_INFO")
    )
    headers = {name[5:]: value for name, value in environ.items() if name.startswith("HTTP_")}
    headers |= {
        name: environ[name] for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if environ.get(name)
    }
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": environ["REQUEST_METHOD"],
        "scheme": environ.get("wsgi.url_scheme", "http"),
        "path": (root + inside).decode("utf-8", "replace"),
        "raw_path": quote(root + inside).encode("ascii"),
        "root_path": root.decode("utf-8", "replace"),
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [
            (name.replace("_", "-").lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in headers.items()
        ],
        "client": (environ.get("REMOTE_ADDR", ""), int(environ.get("REMOTE_PORT") or 0)),
        "server": (environ.get("SERVER_NAME", ""), int(environ.get("SERVER_PORT") or 0)),
        "environ": environ,
    }


def wsgi(pages: ASGIApp) -> Bridge:
    """Make a WSGI application of the pages that `app` has made, to mount in Flask and others.

    Its requests run on an event loop in a thread of its own, which the first request of each
    process starts: so a server may fork after it was made. The rule of access finds the environment
    of WSGI as `request.scope["environ"]`. Its `close()` closes the connections.
    """
    return Bridge(pages)
