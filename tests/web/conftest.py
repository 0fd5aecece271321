"""What the tests of the pages have besides: a client of the application, and jobs to look at."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import httpx
import pytest

from headrace import Queue
from headrace.web import ACTIONS, app
from tests.support.servers import Server

ORIGIN = "http://pages.test"
SAME = {"sec-fetch-site": "same-origin"}


class Site:
    """The pages as a browser asks for them, with all actions granted unless *options* say otherwise."""

    def __init__(self, url: Any, runner: asyncio.Runner, base: str = ORIGIN, **options: Any) -> None:
        self.pages: Any = app(url, **{"access": lambda _: ACTIONS, **options})
        self._client = self.client(self.pages, base)
        self._runner = runner

    def client(self, pages: Any, base: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(pages), base_url=base)

    def get(self, path: str = "", **query: str) -> httpx.Response:
        """Ask for a page."""
        return self._runner.run(self._client.get(path, params=query or None))

    def post(self, action: str, headers: dict[str, str] | None = None, **fields: str) -> httpx.Response:
        """Send a form."""
        return self._runner.run(
            self._client.post(f"do/{action}", data=fields, headers=SAME if headers is None else headers)
        )

    def done(self, action: str, **fields: str) -> str:
        """Send a form, and return what the page that follows says of it."""
        answer = self.post(action, **fields)
        assert answer.status_code == 303, text(answer)
        self._client.headers.pop("cookie", None)
        shown = self._runner.run(self._client.get(str(answer.url.join(answer.headers["location"]))))
        assert shown.status_code in (200, 404), text(shown)
        found = re.search(r'<p class="outcome" role="status">(.*?)</p>', shown.text)
        return unescape(found[1]) if found else ""

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.run(self.pages.close())


def text(answer: httpx.Response) -> str:
    """What a page says, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def site(newest: Server, runner: asyncio.Runner) -> Iterator[Any]:
    """Make sites: `site(access=…)`."""
    made: list[Site] = []

    def make(**options: Any) -> Site:
        made.append(Site(newest.url, runner, **options))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    """The queue `q`."""
    with Queue("q", url=newest.url) as queue:
        yield queue
