"""The pages below a prefix of an application of each framework. Every link, form and file leads to
its place."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from html import unescape
from io import BytesIO
from typing import Any

import httpx
import pytest

from headrace import Queue
from headrace.console.web.render import static_files
from headrace.web import ACTIONS, app, wsgi
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.web.conftest import ORIGIN, SAME, text

Make = Callable[[Any], Any]


def starlette(pages: Any) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount("/admin/queues", pages)])


def fastapi(pages: Any) -> Any:
    application = importlib.import_module("fastapi").FastAPI()
    application.mount("/admin/queues", pages)
    return application


def litestar(pages: Any) -> Any:
    framework = importlib.import_module("litestar")
    return framework.Litestar(
        [framework.asgi("/admin/queues", is_mount=True, copy_scope=True)(pages)]
    )


def flask(pages: Any) -> Any:
    return flask_with(importlib.import_module("flask").Flask("site"), pages)


def flask_with(application: Any, pages: Any) -> Any:
    dispatcher: Any = importlib.import_module("werkzeug.middleware.dispatcher")
    application.wsgi_app = dispatcher.DispatcherMiddleware(
        application.wsgi_app, {"/admin/queues": pages}
    )
    return application


@pytest.fixture
def ask(
    site: Any, made: Callable[[Any], Any], request: pytest.FixtureRequest
) -> Callable[..., httpx.Response]:
    """Ask the application that the parameter makes."""
    make: Make = request.param
    pytest.importorskip(make.__name__, reason=f"{make.__name__} is not installed")
    one = site()
    if make is flask:
        bridge = made(wsgi(one.pages))
        one.client = httpx.Client(transport=httpx.WSGITransport(make(bridge)), base_url=ORIGIN)
        one.client.aclose = one.client.close
    else:
        one.mount(make(one.pages))
    return lambda path, form=None: one.client.request(
        "GET" if form is None else "POST", path, data=form, headers=SAME
    )


def leads_on(ask: Callable[..., httpx.Response], shown: httpx.Response) -> set[str]:
    """Follow all links of a page and return them. Its files are of this version and cached for
    ever."""
    links = {unescape(link) for link in re.findall(r'(?:href|src)="([^"#]+)"', shown.text)}
    for link in links:
        answer = ask(str(shown.url.join(link)))
        assert answer.status_code == 200, link
        assert answer.url.path.startswith("/admin/queues/"), link
        assert ("immutable" in answer.headers["cache-control"]) == ("static/" in link), link
    return links


@pytest.mark.parametrize(
    "ask", [starlette, fastapi, litestar, flask], indirect=True, ids=lambda make: make.__name__
)
def test_mounted(ask: Callable[..., httpx.Response], queue: Queue) -> None:
    queue.enqueue(b"x", id="a b")
    shown = ask("/admin/queues/")
    assert shown.status_code == 200
    assert "Queues" in text(shown)
    assert "✗" not in text(shown)
    assert "queue?name=q" in leads_on(ask, shown)
    assert f"static/{static_files()[0]}/live.js" in leads_on(ask, shown)
    refused = ask("/admin/queues/do/purge", {"queue": "q"})
    assert "Nothing was done." in text(refused)
    assert f"../static/{static_files()[0]}/style.css" in leads_on(ask, refused)
    assert 'href="job?queue=q&amp;id=a+b"' in ask("/admin/queues/queue?name=q").text
    assert "waiting a b" in text(ask("/admin/queues/job?queue=q&id=a+b"))
    done = ask("/admin/queues/do/pause", {"queue": "q"})
    assert done.status_code == 303
    after = ask(str(done.url.join(done.headers["location"])))
    assert "The queue is paused." in text(after)
    assert queue.admin.paused()
    bare = ask("/admin/queues")
    if bare.status_code in (301, 302, 307, 308):  # to where the links of the page lead on
        assert str(bare.url.join(bare.headers["location"])) == f"{ORIGIN}/admin/queues/"
    else:
        assert "Oldest" not in text(bare), "relative links would lead to another folder"
    assert ask("/elsewhere").status_code == 404


@pytest.fixture
def made() -> Iterator[Callable[[Any], Any]]:
    """Close the applications at the end."""
    with ExitStack() as stack:
        yield lambda one: stack.enter_context(closing(one))


def asked(
    application: Any, path: str, body: bytes = b"", length: str | None = None
) -> tuple[str, bytes]:
    """Ask a WSGI application as a server does."""
    said: list[str] = []
    environ = {
        "REQUEST_METHOD": "POST" if body else "GET", "SCRIPT_NAME": "/q", "PATH_INFO": path,
        "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body)) if length is None else length,
        "HTTP_SEC_FETCH_SITE": "same-origin", "CONTENT_TYPE": "application/x-www-form-urlencoded",
        "HTTP_X_USER": "ada",
    }  # fmt: skip
    answer = b"".join(application(environ, lambda status, _: said.append(status)))
    return said[0], answer


def test_under_wsgi(newest: Server, queue: Queue, made: Callable[[Any], Any]) -> None:
    """Bodies are bounded, and an invalid length counts as zero. The access rule gets the
    environment."""
    queue.enqueue(b"x")
    seen: list[Any] = []

    def access(request: Any) -> Any:
        seen.append(request.scope["environ"]["HTTP_X_USER"])
        return ACTIONS

    site = made(wsgi(app(newest.url, access=access)))
    assert asked(site, "/")[0] == "200 OK"
    assert seen == ["ada"]
    assert asked(site, "/do/pause", b"queue=q")[0] == "303 See Other"
    assert queue.admin.paused()
    large = b"queue=q&x=" + b"x" * (3 << 20)
    assert asked(site, "/do/resume", large)[0] == "400 Bad Request"
    assert asked(site, "/do/resume", b"queue=q", "much")[0] == "400 Bad Request"
    assert queue.admin.paused()
    assert asked(site, "/\xe9t\xe9")[0] == "404 Not Found"


def test_a_fork_has_an_event_loop_of_its_own(
    newest: Server, queue: Queue, made: Callable[[Any], Any]
) -> None:
    """This happens below gunicorn --preload, even if the parent has served a page before."""
    queue.enqueue(b"x")
    site = made(wsgi(app(newest.url)))
    assert asked(site, "/")[0] == "200 OK"
    child = os.fork()
    if not child:
        os._exit(0 if asked(site, "/")[0] == "200 OK" else 1)
    ended: list[int] = []
    until(lambda: ended.extend(os.waitpid(child, os.WNOHANG)) or ended[-2:][0] == child)
    assert ended[-1] == 0
    assert asked(site, "/")[0] == "200 OK"


def test_a_session_of_flask(newest: Server, made: Callable[[Any], Any]) -> None:
    """The rule of docs/how-to/use-in-flask.md asks Flask for the user."""
    framework = pytest.importorskip("flask", reason="flask is not installed")
    site = framework.Flask("site")
    site.secret_key = "x"

    def access(request: Any) -> Any:
        with site.request_context(request.scope["environ"]):
            return "read" if framework.session.get("staff") else None

    @site.get("/login")
    def login() -> str:
        framework.session["staff"] = True
        return "welcome"

    application = flask_with(site, made(wsgi(app(newest.url, access=access))))
    with httpx.Client(transport=httpx.WSGITransport(application), base_url=ORIGIN) as client:
        assert client.get("/admin/queues/").status_code == 403
        assert client.get("/login").text == "welcome"
        assert client.get("/admin/queues/").status_code == 200
