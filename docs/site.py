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
from pathlib import Path

ROOT = Path(__file__).parents[1]
SITE = ROOT / ".site"
CONFIG = ".mkdocs.yml"
RELEASE = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
PAGES = 45  # that there are at least
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)(#[^)]*)?\)")
LOADED = re.compile(
    r"""<(?:script|img|link|source|iframe)\b[^>]*?\b(?:src|href)="?(?:https?:)?//([^/"\s>]+)[^>]*>"""
)


def address(page: str) -> str:
    """Return the address of a page on the site."""
    return re.sub(r"(^|/)index/$", r"\1", page.removesuffix(".md") + "/")


def llms(docs: Path, site: Path) -> None:
    """Write llms.txt, the index with the addresses of the site, and llms-full.txt, all pages as
    they are written."""
    index = (docs / "index.md").read_text("utf-8")
    links = [link[1] for link in LINK.findall(index)]
    short = LINK.sub(lambda link: f"[{link[1]}]({address(link[2])})", index)
    (site / "llms.txt").write_text(
        re.sub(r"^(\w[\w ]+):$", r"### \1", short, flags=re.MULTILINE), "utf-8"
    )
    pages = [docs / "index.md", *(docs / link for link in dict.fromkeys(links))]
    whole = (f"<!-- {page.relative_to(docs)} -->\n\n{page.read_text('utf-8')}" for page in pages)
    (site / "llms-full.txt").write_text("\n\n".join(whole), "utf-8")


def wrong(site: Path) -> list[str]:
    """Return the faults of the built site."""
    pages = sorted(site.rglob("*.html"))
    found = [] if len(pages) >= PAGES else [f"{len(pages)} pages only"]
    for page in pages:
        text = page.read_text("utf-8")
        hosts = [m[1] for m in LOADED.finditer(text) if 'rel="canonical"' not in m[0]]
        found += [f"{page.relative_to(site)} loads something from {host}" for host in hosts]
    text = (site / address("reference/api/queue.md") / "index.html").read_text("utf-8")
    found += [] if 'id="queueenqueue"' in text else ["no section of Queue.enqueue"]
    found += [] if list(site.rglob("search*.json")) else ["no search"]
    return found


def build(root: Path, site: Path) -> None:
    """Build the pages of a checkout that is a copy. Raises `CalledProcessError`."""
    tool = shutil.which("zensical", path=str(Path(sys.executable).parent)) or "zensical"
    subprocess.run([tool, "build", "--strict", "--clean", "-f", CONFIG], cwd=root, check=True)
    shutil.move(root / ".site", site)
    for path in [*site.rglob("__pycache__"), *site.rglob("*.py")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
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
        dev = Path(name, "dev")
        for folder in ("docs", "src"):
            shutil.copytree(ROOT / folder, dev / folder)
        shutil.copy(ROOT / CONFIG, dev)
        build(dev, built / "dev")
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
    for file in ("llms.txt", "llms-full.txt"):
        shutil.copy(SITE / first / file, SITE / file)
    complaints = wrong(SITE / "dev")
    print(
        "\n".join(complaints)
        or f"{len(list(SITE.rglob('*.html')))} pages of {len(versions)} versions, in {SITE.name}"
    )
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
