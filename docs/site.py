"""Build the site of docs/ into .site, strictly: a warning fails. Then llms.txt, and a look at what was built.

poe site        needs the group `site`: pip install --group site
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SITE = ROOT / ".site"
PAGES = 50  # that there are at least
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)(#[^)]*)?\)")
LOADED = re.compile(r"""<(?:script|img|link|source|iframe)\b[^>]*?\b(?:src|href)="?(?:https?:)?//([^/"\s>]+)[^>]*>""")


def address(page: str) -> str:
    """Return where the site has a page."""
    return re.sub(r"(^|/)index/$", r"\1", page.removesuffix(".md") + "/")


def llms() -> None:
    """Write llms.txt, the index with the addresses of the site, and llms-full.txt, all pages as they are written."""
    index = (DOCS / "index.md").read_text("utf-8")
    links = [link[1] for link in LINK.findall(index)]
    short = LINK.sub(lambda link: f"[{link[1]}]({address(link[2])})", index)
    (SITE / "llms.txt").write_text(re.sub(r"^(\w[\w ]+):$", r"## \1", short, flags=re.MULTILINE), "utf-8")
    pages = [DOCS / "index.md", *(DOCS / link for link in dict.fromkeys(links))]
    whole = (f"<!-- {page.relative_to(DOCS)} -->\n\n{page.read_text('utf-8')}" for page in pages)
    (SITE / "llms-full.txt").write_text("\n\n".join(whole), "utf-8")


def wrong() -> list[str]:
    """Say what is wrong with what was built."""
    pages = sorted(SITE.rglob("*.html"))
    found = [] if len(pages) >= PAGES else [f"{len(pages)} pages only"]
    for page in pages:
        text = page.read_text("utf-8")
        hosts = [m[1] for m in LOADED.finditer(text) if 'rel="canonical"' not in m[0]]
        found += [f"{page.relative_to(SITE)} loads something from {host}" for host in hosts]
        found += [f"{page.relative_to(SITE)} has a directive as text"] if re.search(r"<p>::: ", text) else []
    docstrings = (SITE / "reference" / "docstrings" / "index.html").read_text("utf-8")
    found += [f"no docstring of {name}" for name in ("headrace.Queue.enqueue", "headrace.AsyncQueue.enqueue")
              if f'id="{name}"' not in docstrings]  # fmt: skip
    found += [] if (SITE / "search.json").exists() or list(SITE.rglob("search*.json")) else ["no search"]
    return found


def main() -> int:
    """Build; return an exit code."""
    shutil.rmtree(SITE, ignore_errors=True)
    tool = shutil.which("zensical", path=str(Path(sys.executable).parent)) or "zensical"
    built = subprocess.run([tool, "build", "--strict", "--clean", "-f", ".mkdocs.yml"], cwd=ROOT, check=False)
    if built.returncode:
        return built.returncode
    for path in [*SITE.rglob("__pycache__"), *SITE.rglob("*.py")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    llms()
    complaints = wrong()
    print("\n".join(complaints) or f"{len(list(SITE.rglob('*.html')))} pages, in {SITE.name}")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
