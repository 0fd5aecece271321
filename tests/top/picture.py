"""Draw the picture of docs/how-to/watch-in-the-terminal.md. The command is `python -m
tests.top.picture`."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

from attrs import evolve

from headrace import Queue
from headrace._api.aio.inspector import AsyncInspector
from headrace._core.views.attention import Look, attention
from headrace._model.state import WorkerState
from headrace._model.views.overview import Overview
from headrace._model.views.queues import QueueView
from headrace._protocol.view_ops import Signs
from headrace.console.top.app import Top

PICTURE = Path(__file__).parents[2] / "docs/how-to/top.svg"
NOW_S = 1893456000.0
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
            queues = tuple(map(shaped, found.queues))
            looks = {"emails": Look(Signs(letters=4))}
            server = (
                evolve(found.server, memory=48 << 20, maxmemory=1 << 30) if found.server else None
            )
            facts = attention(queues, looks, {}, server)
            now = evolve(found, now=NOW_S, queues=queues, attention=facts, server=server)

            async def overview() -> Overview:
                return now

            look.overview = overview  # type: ignore[method-assign]
            top = Top(look, {"url": url}, "headrace", url, every=2.0)
            async with top.run_test(size=(80, 18)) as pilot:
                while not top.reads:
                    await pilot.pause(0.05)
                await pilot.pause()
                drawn = top.export_screenshot(title="headrace top")
                # of another host
                drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
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
    workers = (
        WorkerState("worker", view.name, NOW_S - 3600, NOW_S + 15, int(went / 4), alive=True),
    )
    return evolve(
        view,
        workers=workers,
        counts=counts,
        lag=waiting / 50,
        rates={"enqueued": came, "completed": went},
        trail=trail,
    )


if __name__ == "__main__":
    asyncio.run(main())
