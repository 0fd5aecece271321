"""The pages below a prefix of an application of each framework: every link, form and file leads to where it is."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import httpx
import pytest

from headrace import Queue
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
    return framework.Litestar([framework.asgi("/admin/queues", is_mount=True, copy_scope=True)(pages)])


def django(pages: Any) -> Any:
    """As docs/how-to/watch-in-the-browser.md has it: Django mounts no applications."""
    with pytest.MonkeyPatch.context() as patch:  # not for the processes that other tests start
        patch.setenv("DJANGO_SETTINGS_MODULE", "tests.django.project")
        framework = importlib.import_module("django.core.asgi").get_asgi_application()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        inside = scope["type"] == "http" and f"{scope['path']}/".startswith("/admin/queues/")
        if inside:
            await pages({**scope, "root_path": "/admin/queues"}, receive, send)
        else:
            await framework(scope, receive, send)

    return application


@pytest.fixture
def ask(site: Any, request: pytest.FixtureRequest) -> Callable[..., httpx.Response]:
    """Ask the application that the parameter makes."""
    make: Make = request.param
    pytest.importorskip(make.__name__, reason=f"{make.__name__} is not installed")
    one = site()
    one.mount(make(one.pages))
    return lambda path, form=None: one.client.request("GET" if form is None else "POST", path, data=form, headers=SAME)


@pytest.mark.parametrize("ask", [starlette, fastapi, litestar, django], indirect=True, ids=lambda make: make.__name__)
def test_mounted(ask: Callable[..., httpx.Response], queue: Queue) -> None:
    queue.enqueue(b"x", id="a b")
    shown = ask("/admin/queues/")
    assert shown.status_code == 200
    assert "Queues" in text(shown)
    assert "✗" not in text(shown)
    links = {unescape(link) for link in re.findall(r'(?:href|src)="([^"#]+)"', shown.text)}
    assert "queue?name=q" in links
    for link in links:
        answer = ask(str(shown.url.join(link)))
        assert answer.status_code == 200, link
        assert answer.url.path.startswith("/admin/queues/"), link
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
