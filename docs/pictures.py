"""Take the pictures of the documentation, of `headrace web --demo` in a Chromium of this system.

poe pictures            all
poe pictures queues     these
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent / "pictures"
WIDTH = 1200
WARM_UP_MS = 20_000  # until the demo has something of everything, and rates have a course
TRENDS_MS = 300_000  # until it has some minutes of trends


def at(path: str) -> Callable[[Page], object]:
    """Go to a page by its address."""
    return lambda page: page.goto(path)


def dead_job(page: Page) -> None:
    """Go to the job of the first dead letter."""
    page.goto("queue?name=emails&state=dead")
    page.locator("main table a").first.click()


PICTURES: dict[str, Callable[[Page], object]] = {
    "queues": at("./"),
    "queue": at("queue?name=emails"),
    "job": dead_job,
    "dead": at("dead?name=emails"),
    "workers": at("workers"),
    "flows": at("flows"),
    "schedules": at("schedules"),
    "trends": at("trends?name=emails"),  # the last, as it takes some minutes
}
BOTH = {"queues"}  # taken light and dark: for the first page


def take(page: Page, name: str, go: Callable[[Page], object]) -> None:
    """Take the picture *name*, as high as its page is."""
    go(page)
    page.wait_for_load_state("networkidle")
    for scheme in ("light", "dark") if name in BOTH else ("light",):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        box: Any = page.locator("footer").last.bounding_box()
        high = min(900, int(box["y"] + box["height"]) + 12)
        path = HERE / (f"{name}-{scheme}.png" if name in BOTH else f"{name}.png")
        page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": high})
        print(f"{path.name}: {path.stat().st_size:,} bytes")


def main(wanted: list[str]) -> int:
    """Take the pictures of these names, or all; return an exit code."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or set(wanted) - PICTURES.keys():
        print(f"needs a Chromium on PATH, and names of {', '.join(PICTURES)}")
        return 2
    command = [sys.executable, "-m", "headrace", "web", "--demo", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo, sync_playwright() as play:
        assert demo.stdout is not None
        address = demo.stdout.readline().strip()
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": WIDTH, "height": 640}, base_url=address.partition("?")[0], device_scale_factor=1.5
        )
        page.goto(address)
        page.wait_for_timeout(WARM_UP_MS)
        for name in wanted or PICTURES:
            if name == "trends":
                page.wait_for_timeout(TRENDS_MS)
            take(page, name, PICTURES[name])
        browser.close()
        demo.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
