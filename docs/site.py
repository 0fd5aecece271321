"""Build the site of docs/ into .site, strictly, so that a warning fails. Then write llms.txt, and
check the result.

A folder a version: `dev`, which is this checkout, and each release, as its tag `v1.2.3` has it. A
page names its version and leads to the others by `versions.json`, as Material for MkDocs does; the
root leads to the latest release.

poe site        needs the group `site`: pip install --group site
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from html.parser import HTMLParser
from os.path import normpath
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
SITE = ROOT / ".site"
CONFIG = ".mkdocs.yml"
RELEASE = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
PAGES = 100  # that there are at least
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)(#[^)]*)?\)")
CODE = re.compile(r"`[^`]+`")
LOADED = re.compile(
    r"""<(?:script|img|link|source|iframe)\b[^>]*?\b(?:src|href)="?(?:https?:)?//([^/"\s>]+)[^>]*>"""
)


def address(page: str) -> str:
    """Return the address of a page on the site."""
    return re.sub(r"(^|/)index/$", r"\1", page.removesuffix(".md") + "/")


def llms(docs: Path, site: Path) -> None:
    """Write llms.txt, all pages with their addresses on the site, and llms-full.txt, all pages as
    they are written."""
    _, promise, *_ = (docs / "index.md").read_text("utf-8").split("\n\n")
    listed = (docs / "reference" / "pages.md").read_text("utf-8").partition("# All pages\n")[2]
    links = [normpath(f"reference/{link[2]}") for link in LINK.finditer(listed)]
    by_address = LINK.sub(
        lambda link: f"[{link[1]}]({address(normpath(f'reference/{link[2]}'))})", listed
    )
    (site / "llms.txt").write_text(f"# headrace\n\n> {promise}\n{by_address}", "utf-8")
    pages = ["index.md", *(link for link in links if not link.startswith("reference/pages"))]
    whole = (f"<!-- {page} -->\n\n{(docs / page).read_text('utf-8')}" for page in pages)
    (site / "llms-full.txt").write_text("\n\n".join(whole), "utf-8")


def searched(site: Path) -> None:
    """Leave the sections of the wire protocol out of the search. They have the names of verbs, and
    would come before the pages on verbs."""
    file = site / "search.json"
    index = json.loads(file.read_text("utf-8"))
    index["items"] = [
        item
        for item in index["items"]
        if not item["location"].startswith("reference/redis-protocol/#")
    ]
    file.write_text(json.dumps(index), "utf-8")


class Page(HTMLParser):
    """Reads the anchors of a built page, and the addresses that it loads or leads to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the anchor and the addresses of an element."""
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value or "")
            elif name in {"href", "src"} and (tag, name) != ("base", "href"):
                self.links.add(value or "")


def dead(site: Path) -> list[str]:
    """Return the links of a built site that lead nowhere in it. A link to another site is not
    tried."""
    files = sorted(page for page in site.rglob("*.html") if page.name != "404.html")
    pages = {page: Page(page.read_text("utf-8")) for page in files}
    found: list[str] = []
    for page, read in pages.items():
        for link in sorted(read.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            other = pages.get(target)
            lost = other is not None and unquote(parts.fragment) not in {"", *other.anchors}
            if lost or not target.is_file():
                found.append(f"{page.relative_to(site)}: {link} leads nowhere")
    return found


def wrong(site: Path) -> list[str]:
    """Return the faults of the built site."""
    pages = sorted(site.rglob("*.html"))
    found = [] if len(pages) >= PAGES else [f"{len(pages)} pages only"]
    for page in pages:
        text = page.read_text("utf-8")
        hosts = [m[1] for m in LOADED.finditer(text) if 'rel="canonical"' not in m[0]]
        found += [f"{page.relative_to(site)} loads something from {host}" for host in hosts]
    return found + dead(site)


def copied(root: Path) -> None:
    """Copy what the site of this checkout is built from."""
    for folder in ("docs", "src"):
        shutil.copytree(ROOT / folder, root / folder)
    shutil.copy(ROOT / CONFIG, root)


def with_pipes(docs: Path) -> None:
    """Write the code of tables as the site reads it. GitHub wants a backslash before a pipe, which
    the site would show."""
    for page in docs.rglob("*.md"):
        lines = page.read_text("utf-8").split("\n")
        read = [
            CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line[:1] == "|" else line
            for line in lines
        ]
        page.write_text("\n".join(read), "utf-8")


def build(root: Path, site: Path) -> None:
    """Build the pages of a checkout that is a copy. Raises `CalledProcessError`."""
    with_pipes(root / "docs")
    tool = shutil.which("zensical", path=str(Path(sys.executable).parent)) or "zensical"
    subprocess.run([tool, "build", "--strict", "--clean", "-f", CONFIG], cwd=root, check=True)
    shutil.move(root / ".site", site)
    for path in [*site.rglob("__pycache__"), *site.rglob("*.py")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    searched(site)
    llms(root / "docs", site)


def releases() -> list[str]:
    """Return the tags of releases that have a site, the latest first."""
    tags = subprocess.run(
        ["git", "tag", "--list", "v*"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    found = sorted(
        (m for m in map(RELEASE.fullmatch, tags.split()) if m),
        key=lambda m: [int(n) for n in m.groups()],
    )
    has = ["git", "cat-file", "-e"]
    return [
        m[0]
        for m in reversed(found)
        if not subprocess.run([*has, f"{m[0]}:{CONFIG}"], cwd=ROOT, check=False).returncode
    ]


def main() -> int:
    """Build, and return an exit code."""
    shutil.rmtree(SITE, ignore_errors=True)
    tags = releases()
    with tempfile.TemporaryDirectory(prefix="headrace-site-") as name:
        built = Path(name, "built")
        built.mkdir()
        for tag in tags:
            packed = subprocess.run(
                ["git", "archive", tag], cwd=ROOT, check=True, capture_output=True
            ).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
                tar.extractall(Path(name, tag), filter="data")
            build(Path(name, tag), built / tag.removeprefix("v"))
        copied(Path(name, "dev"))
        build(Path(name, "dev"), built / "dev")
        shutil.move(built, SITE)
    versions = [
        {"version": tag.removeprefix("v"), "title": tag, "aliases": [] if number else ["latest"]}
        for number, tag in enumerate(tags)
    ]
    versions.append({"version": "dev", "title": "dev", "aliases": []})
    first = str(versions[0]["version"])
    (SITE / "versions.json").write_text(json.dumps(versions), "utf-8")
    (SITE / "index.html").write_text(
        '<!doctype html><meta charset="utf-8"><title>headrace</title>'
        f'<meta http-equiv="refresh" content="0; url={first}/">'
        f'<a href="{first}/">headrace {first}</a>\n',
        "utf-8",
    )
    shutil.copy(SITE / first / "llms-full.txt", SITE)
    listed = (SITE / first / "llms.txt").read_text("utf-8")
    (SITE / "llms.txt").write_text(listed.replace("](", f"]({first}/"), "utf-8")
    complaints = wrong(SITE / "dev")
    print(
        "\n".join(complaints)
        or f"{len(list(SITE.rglob('*.html')))} pages of {len(versions)} versions, in {SITE.name}"
    )
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
