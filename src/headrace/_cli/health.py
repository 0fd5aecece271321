"""`headrace work --health-port`: `/live` and `/ready` for probes, answered by the supervisor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import redis

from headrace._cli.console import say
from headrace._net.base.address import shown
from headrace._net.sync.cluster import client_of
from headrace.errors import ConfigurationError

ASKED_FOR_S = 2.0  # seconds that a server has to answer
Reason = Callable[[], str]


class Health(ThreadingHTTPServer):
    """An HTTP server on all interfaces. *reason*: why the worker is not ready, or ''. It runs until `close`."""

    daemon_threads = True

    def __init__(self, port: int, reason: Reason) -> None:
        self.reason = reason
        try:
            super().__init__(("", port), _Handler)
        except OSError as error:
            raise ConfigurationError(f"--health-port {port}: {error.strerror}") from None
        threading.Thread(target=self.serve_forever, daemon=True).start()
        say(f"health is served on port {self.server_port}")

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Health  # pyright: ignore[reportIncompatibleVariableOverride] - the base knows any server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path not in ("/live", "/ready"):
            self._answer(404, "give /live or /ready")
            return
        reason = self.server.reason() if path == "/ready" else ""
        self._answer(503 if reason else 200, reason or "ok")

    def _answer(self, status: int, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a probe comes every few seconds."""


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
