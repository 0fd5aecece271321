"""Helpers for the tests of the pages, which are a client of the application and jobs to look at."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from html import unescape
from typing import Any

import httpx
import pytest

from headrace.web import ACTIONS, app
from tests.conftest import newest_queue
from tests.support.colours import Blocking
from tests.support.program import started
from tests.support.servers import Server
from tests.web.chromium import chromium

queue = newest_queue

ORIGIN = "http://pages.test"
SAME = {"sec-fetch-site": "same-origin"}


class Site:
    """The pages as a browser sees them. All actions are granted unless *options* say otherwise."""

    def __init__(self, runner: asyncio.Runner, url: Any, **options: Any) -> None:
        self.pages: Any = app(url, **{"access": lambda _: ACTIONS, **options})
        self._runner = runner
        self.mount(self.pages)

    def mount(self, application: Any, base: str = ORIGIN) -> None:
        """Ask an application at *base* from now on. It usually has the pages mounted in it."""
        client = httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url=base)
        self.client: Any = Blocking(client, self._runner)

    def get(self, path: str = "", **query: str) -> httpx.Response:
        response: httpx.Response = self.client.get(path, params=query or None)
        return response

    def post(
        self, action: str, /, headers: dict[str, str] | None = None, **fields: str | list[str]
    ) -> httpx.Response:
        headers = SAME if headers is None else headers
        response: httpx.Response = self.client.post(f"do/{action}", data=fields, headers=headers)
        return response

    def done(self, action: str, /, **fields: str | list[str]) -> str:
        """Return a function that sends a form and returns the outcome on the page that follows."""
        answer = self.post(action, **fields)
        assert answer.status_code == 303, text(answer)
        self.client.headers.pop("cookie", None)
        shown = self.client.get(str(answer.url.join(answer.headers["location"])))
        assert shown.status_code in (200, 404), text(shown)
        found = re.search(r'<p class="outcome" role="status"[^>]*>(.*?)</p>', shown.text)
        return unescape(found[1]) if found else ""

    def close(self) -> None:
        self.client.aclose()
        self._runner.run(self.pages.close())


def text(answer: httpx.Response) -> str:
    """Return the text of a page without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def site(newest: Server, runner: asyncio.Runner) -> Iterator[Any]:
    """Return a maker of sites, as in `site(access=…)`. The newest server is used without another
    *url*."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(
            closing(Site(runner, **{"url": newest.url, **options}))
        )


@pytest.fixture
def program(newest: Server) -> Iterator[str]:
    """Run `headrace web` and return the address that it prints."""
    with started("web", "--port", "0", url=newest.url) as running:
        assert running.stdout is not None
        yield running.stdout.readline().decode().strip()
        running.terminate()
        _, complaints = running.communicate(timeout=30)
        assert b"Traceback" not in complaints, complaints.decode()


@pytest.fixture
def page(program: str) -> Iterator[Any]:
    """Return a browser's page that has entered. At the end its console is empty and it has asked no
    other host."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800})
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(program)
        yield page
    assert said == []
    assert {url.split("/")[2] for url in asked} == {program.split("/")[2]}
