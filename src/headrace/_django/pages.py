"""The pages as a view of Django. It calls their ASGI application on an event loop of its own, so it is the same under
WSGI and ASGI.
"""

from __future__ import annotations

import asyncio
import os
import threading
from importlib import import_module
from typing import Any

from attrs import define, field

from headrace import _forks
from headrace._django import contract
from headrace._django.backend import TaskBackend
from headrace._model.verbs import VERBS
from headrace.errors import ConfigurationError

RIGHTS = "headrace.rights"  # of the scope: what the user of a request may do
WITHIN_S = 30.0  # seconds that a page may take
_lock = _forks.lock()


def rights_of(user: Any) -> Any:
    """Return what a user may do, as the `access` of `headrace.web.app` does.

    With the permission `headrace.view_queue` a user sees all; with `change_queue` also acts; with `delete_queue` also
    takes the actions that can't be undone.
    """
    change, delete = user.has_perm("headrace.change_queue"), user.has_perm("headrace.delete_queue")
    if not (change or delete or user.has_perm("headrace.view_queue")):
        return None
    granted = {name for name, verb in VERBS.items() if verb.page and (delete if verb.final else change)}
    return granted or "read"


@define(eq=False)
class Site:
    """The pages of this process, and the event loop that they run on."""

    process: int = field(factory=os.getpid)
    loop: asyncio.AbstractEventLoop = field(init=False)
    app: Any = field(init=False)
    thread: threading.Thread = field(init=False)

    def __attrs_post_init__(self) -> None:
        from headrace.web import app

        options = _first().settings
        self.app = app(options.url, namespace=options.namespace, access=lambda request: request.scope[RIGHTS])
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="headrace-pages", daemon=True)
        self.thread.start()

    def ask(self, scope: dict[str, Any], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send a request to the pages; return status, headers and body of the answer."""
        return asyncio.run_coroutine_threadsafe(self._asked(scope, body), self.loop).result(WITHIN_S)

    async def _asked(self, scope: dict[str, Any], body: bytes) -> tuple[int, dict[str, str], bytes]:
        answer = bytearray()
        status, headers = 500, dict[str, str]()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
            else:
                answer.extend(message.get("body", b""))

        await self.app(scope, receive, send)
        return status, headers, bytes(answer)


_site: Site | None = None


def site() -> Site:
    """Return the pages of this process; a forked one makes its own. Raises `ConfigurationError`."""
    global _site  # noqa: PLW0603 - one event loop for a process
    with _lock:
        if _site is None or _site.process != os.getpid():
            _site = Site()
        return _site


def close() -> None:
    """Stop the event loop of the pages, if there is one; the next page makes another."""
    global _site
    with _lock:
        gone, _site = _site, None
    if gone is not None and gone.process == os.getpid():
        asyncio.run_coroutine_threadsafe(gone.app.close(), gone.loop).result(WITHIN_S)
        gone.loop.call_soon_threadsafe(gone.loop.stop)
        gone.thread.join()
        gone.loop.close()


def _first() -> TaskBackend:
    """Return the first backend of `TASKS` that is ours: its server's queues are shown."""
    found = next((one for one in contract.task_backends().all() if isinstance(one, TaskBackend)), None)
    if found is None:
        raise ConfigurationError("TASKS has no headrace.django.TaskBackend, so there is no server to show")
    return found


def scope_of(request: Any, path: str) -> dict[str, Any]:
    """Make the scope of a request of Django. *path*: the part behind the prefix of the pages."""
    root = request.path[: len(request.path) - len(path)].rstrip("/")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.path.encode(),
        "root_path": root,
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()
        ],
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        "server": (request.META.get("SERVER_NAME", ""), int(request.META.get("SERVER_PORT") or 0)),
        "user": request.user,
        RIGHTS: rights_of(request.user),
    }


def view(request: Any, path: str) -> Any:
    """Show the page *path*. A view of Django: put it behind staff rights."""
    http: Any = import_module("django.http")
    try:
        status, headers, body = site().ask(scope_of(request, path), request.body)
    except ConfigurationError as error:
        return http.HttpResponse(str(error), status=500, content_type="text/plain")
    return http.HttpResponse(body, status=status, headers=headers)
