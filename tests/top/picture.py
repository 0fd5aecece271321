"""Draw the picture of docs/how-to/watch-in-the-terminal.md: `python -m tests.top.picture`."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

from attrs import evolve

from headrace import Queue
from headrace._api.aio.inspector import AsyncInspector
from headrace._model.views import Overview, QueueView
from headrace._ui.top.app import Top

PICTURE = Path(__file__).parents[2] / "docs/how-to/top.svg"
SHAPES = {"emails": (310, 48.0, 44.0), "reports": (6, 1.5, 1.6), "archive": (120, 2.0, 0.0)}


async def main() -> None:
    """Draw real views of a private server, with counts and rates as they might be."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"embedded:{folder}/server"
        for name in SHAPES:
            with Queue(name, url=url) as queue:
                queue.enqueue(b"{}")
                if name == "archive":
                    queue.admin.pause()
        async with AsyncInspector(url=url) as look:
            found = await look.overview()
            now = evolve(found, now=1893456000.0, queues=tuple(map(shaped, found.queues)))

            async def overview() -> Overview:
                return now

            look.overview = overview  # type: ignore[method-assign]
            top = Top(look, {"url": url}, "headrace", url, every=2.0)
            async with top.run_test(size=(80, 12)) as pilot:
                while not top.reads:
                    await pilot.pause(0.05)
                await pilot.pause()
                drawn = top.export_screenshot(title="headrace top")
                drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # of another host
                lines = (line.rstrip() for line in drawn.strip().splitlines())
                PICTURE.write_text("\n".join([*lines, ""]))


def shaped(view: QueueView) -> QueueView:
    """Give a view of a queue with one job numbers to look at."""
    waiting, came, went = SHAPES[view.name]
    done = waiting * 97
    counts = evolve(
        view.counts, waiting=waiting, leased=int(went / 4), delayed=waiting // 9, dead=waiting // 40,
        enqueued=waiting + int(went / 4) + waiting // 9 + waiting // 40 + done, completed=done,
    )  # fmt: skip
    trail = tuple((came, went * (3 + n * n % 7) / 6) for n in range(20))
    return evolve(view, counts=counts, lag=waiting / 50, rates={"enqueued": came, "completed": went}, trail=trail)


if __name__ == "__main__":
    asyncio.run(main())
