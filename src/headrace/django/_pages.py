"""The pages as a view of Django.

It calls their ASGI application on an event loop of its own, so it is the same under WSGI and ASGI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.django import _contract as contract
from headrace.django._backend import TaskBackend
from headrace.errors import ConfigurationError
from headrace.platform import VERBS, forks, given

if TYPE_CHECKING:
    from headrace.console.web.bridge import Bridge

RIGHTS = "headrace.rights"  # of the scope: what the user of a request may do
_csrf: Any = import_module("django.views.decorators.csrf")
_lock = forks.lock()


def rights_of(user: Any) -> Any:
    """Return the rights of a user, as the `access` of `headrace.web.app` does.

    With the permission `headrace.view_queue` a user sees all. With `change_queue` a user also acts.
    With `delete_queue` a user also takes the actions that can't be undone.
    """
    change = user.has_perm("headrace.change_queue")
    delete = user.has_perm("headrace.delete_queue")
    if not (change or delete or user.has_perm("headrace.view_queue")):
        return None
    granted = {
        name for name, verb in VERBS.items() if verb.page and (delete if verb.final else change)
    }
    return granted or "read"


def _granted(request: Any) -> Any:
    return request.scope[RIGHTS]


_site: Bridge | None = None


def site() -> Bridge:
    """Return the pages, which are made once. Raises `ConfigurationError`."""
    global _site  # noqa: PLW0603 - one event loop for a process
    from headrace.console.web.bridge import Bridge
    from headrace.web import app

    with _lock:
        if _site is None:
            options: dict[str, Any] = {"access": _granted, **_options()}
            _site = Bridge(app(**options))
        return _site


def close() -> None:
    """Stop the event loop of the pages, if there is one. The next page makes another."""
    global _site
    with _lock:
        gone, _site = _site, None
    if gone is not None:
        gone.close()


def _options() -> dict[str, Any]:
    """Return the arguments of `app`.

    The first backend of `TASKS` that is ours names the server, or else the environment does. The
    setting `HEADRACE_WEB` overrides them.
    """
    settings: Any = import_module("django.conf")
    ours = next(
        (one.settings for one in contract.task_backends().all() if isinstance(one, TaskBackend)),
        None,
    )
    found = {"url_or_client": ours.url, "namespace": ours.namespace} if ours else {}
    found |= getattr(settings.settings, "HEADRACE_WEB", {})
    if "url_or_client" not in found:
        found["url_or_client"] = given(
            None, 'add HEADRACE_WEB = {"url_or_client": URL} to the settings', ""
        )
    return found


def scope_of(request: Any, path: str) -> dict[str, Any]:
    """Make the scope of a request of Django. *path* is the part behind the prefix of the pages."""
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
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in request.headers.items()
        ],
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        "server": (request.META.get("SERVER_NAME", ""), int(request.META.get("SERVER_PORT") or 0)),
        "user": request.user,
        RIGHTS: rights_of(request.user),
    }


# The exemption stands on the view, as the admin protects each view that it wraps.
# The pages take a form only from their own origin.
@_csrf.csrf_exempt  # type: ignore[untyped-decorator]  # pyright: ignore[reportUntypedFunctionDecorator]
def view(request: Any, path: str) -> Any:
    """Show the page *path*, as a view of Django. Put it behind staff rights."""
    http: Any = import_module("django.http")
    try:
        status, headers, body = site().ask(scope_of(request, path), request.body)
    except ConfigurationError as error:
        return http.HttpResponse(str(error), status=500, content_type="text/plain")
    return http.HttpResponse(body, status=status, headers=dict(headers))
