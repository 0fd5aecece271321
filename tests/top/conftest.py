"""Helpers for the tests of `headrace top`. They run the application on a real server, and read its
screen as text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual", reason="the extra top is not installed")

from textual.pilot import Pilot

from headrace import Queue
from headrace._api.aio.inspector import AsyncInspector
from headrace.console.top.app import Top
from tests.support.servers import Server

SHOWN = Path(__file__).parent / "shown"
WITHIN_S = 30.0
Story = Callable[["Screen"], Awaitable[None]]


class Screen:
    def __init__(self, top: Top, pilot: Pilot[None]) -> None:
        self.top, self.pilot = top, pilot

    @property
    def text(self) -> str:
        """The screen, a line each."""
        strips = self.top.screen._compositor.render_strips()
        return "\n".join("".join(part.text for part in strip).rstrip() for strip in strips)

    async def shows(self, *words: str, without: str = "") -> str:
        """Wait until the screen has all these words and not *without*, and return it."""
        end = time.monotonic() + WITHIN_S
        while not (
            all(word in self.text for word in words) and (not without or without not in self.text)
        ):
            assert time.monotonic() < end, f"no {words} on\n{self.text}"
            await self.pilot.pause(0.02)
        return self.text

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def types(self, text: str) -> None:
        await self.press(*text, "enter")


@pytest.fixture
def tell(newest: Server) -> Callable[..., None]:
    """Return a function that runs a story, which is an async function of a `Screen`."""

    def run(story: Story, size: tuple[int, int] = (80, 24), url: str = "", **options: Any) -> None:
        server = {"url": url or newest.url}

        async def play() -> None:
            async with AsyncInspector(**server, fresh=0.0) as inspector:
                top = Top(
                    inspector, server, "headrace", "redis://here", **{"every": 0.1, **options}
                )
                async with top.run_test(size=size) as pilot:
                    while not top.reads:
                        await pilot.pause(0.02)
                    await story(Screen(top, pilot))

        asyncio.run(play())

    return run


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    with Queue("emails", url=newest.url) as queue:
        yield queue
