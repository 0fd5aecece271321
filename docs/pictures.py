"""Take the pictures of the documentation, of `headrace web --demo` in a Chromium of this system.

poe pictures                    all that the pages of the documentation show
poe pictures overview job       these
poe pictures --all FOLDER       each view in both schemes and at two widths, to be looked at
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
WIDTHS = {"wide": 1200, "phone": 390}  # pixels
HIGHEST = 1000  # pixels of a picture
# until the demonstration has something of everything, and trends have a course
WARM_UP_MS = 180_000


def at(path: str) -> Callable[[Page], object]:
    """Go to a page by its address."""
    return lambda page: page.goto(path)


def first(path: str, link: str = "main table tbody a") -> Callable[[Page], object]:
    """Go to the first link of a page."""

    def go(page: Page) -> None:
        page.goto(path)
        page.goto(page.locator(link).first.get_attribute("href") or path)

    return go


VIEWS: dict[str, Callable[[Page], object]] = {
    "overview": at("./"),
    "queue": at("queue?name=emails"),
    "completed": at("queue?name=payments&state=ended"),
    "job": first("queue?name=emails&state=dead"),
    "run": first("queue?name=agents&state=blocked"),
    "dead": at("dead"),
    "workers": at("workers"),
    "worker": first("workers"),
    "flow": at("flow?name=shop"),
    "schedules": at("schedules"),
    "tenants": at("tenants"),
}
SHOWN = {  # in the documentation: the view, its scheme and its width
    **{
        f"{name}.png": (name, "light", "wide")
        for name in ("overview", "queue", "job", "dead", "worker", "flow")
    },
    "overview-dark.png": ("overview", "dark", "wide"),
    "run.png": ("run", "light", "wide"),
    "run-dark.png": ("run", "dark", "wide"),
}


def take(page: Page, path: Path, name: str, scheme: Any, width: str) -> None:
    """Take a picture of a view as high as its page."""
    page.set_viewport_size({"width": WIDTHS[width], "height": 800})
    page.emulate_media(color_scheme=scheme)
    VIEWS[name](page)
    page.wait_for_load_state("load")
    # tracebacks
    page.evaluate("document.querySelectorAll('details[open]').forEach(one => { one.open = false })")
    box: Any = page.locator("footer").last.bounding_box()
    high = min(HIGHEST, int(box["y"] + box["height"]) + 12)
    page.screenshot(
        path=path, full_page=True, clip={"x": 0, "y": 0, "width": WIDTHS[width], "height": high}
    )
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def wanted(arguments: list[str]) -> dict[Path, tuple[str, str, str]]:
    """Return the pictures to take. Each path has its view, its scheme and its width."""
    if arguments[:1] == ["--all"]:
        folder = Path(arguments[1])
        folder.mkdir(parents=True, exist_ok=True)
        every = [
            (name, scheme, width)
            for name in VIEWS
            for scheme in ("light", "dark")
            for width in WIDTHS
        ]
        return {folder / f"{'-'.join(one)}.png": one for one in every}
    return {
        HERE / file: one
        for file, one in SHOWN.items()
        if not arguments or file.partition(".")[0] in arguments
    }


def main(arguments: list[str]) -> int:
    """Take the pictures of these names, or all, and return an exit code."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    pictures = wanted(arguments)
    if chromium is None or not pictures:
        print(f"needs a Chromium on PATH, and names of {', '.join(SHOWN)}")
        return 2
    command = [sys.executable, "-m", "headrace", "web", "--demo", "--port", "0"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo,
        sync_playwright() as play,
    ):
        assert demo.stdout is not None
        address = demo.stdout.readline().strip()
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(base_url=address.partition("?")[0], device_scale_factor=1.5)
        page.goto(address)
        page.wait_for_timeout(WARM_UP_MS)
        for path, (name, scheme, width) in pictures.items():
            take(page, path, name, scheme, width)
        browser.close()
        demo.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
