"""The command that installs an extra, from the place where headrace itself was installed from."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

PASSWORD = re.compile(r"(?<=://)[^/@]*:[^/@]*@")


def install_command(extra: str) -> str:
    """Return the command that installs an extra.

    It installs from the checkout, the file or the URL that headrace is from, or else by its name,
    from a registry.
    """
    # here: few programs need it, and it is slow
    from importlib.metadata import PackageNotFoundError, distribution

    text = None
    with suppress(PackageNotFoundError):
        text = distribution("headrace").read_text("direct_url.json")
    try:
        wanted = _wanted(extra, json.loads(text or "{}"), Path.cwd())
    # another installer's file, or no directory
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        wanted = [f"headrace[{extra}]"]
    return f"python -m pip install {shlex.join(wanted)}"


def _wanted(extra: str, direct: Any, here: Path) -> list[str]:
    """Return the arguments of pip. *direct* is the content of `direct_url.json` (PEP 610)."""
    url = PASSWORD.sub("", direct.get("url", ""))
    if url.startswith("file://"):
        path = Path(unquote(urlsplit(url).path))
        if not path.exists():
            return [f"headrace[{extra}]"]
        editable = ["-e"] if direct.get("dir_info", {}).get("editable") else []
        return [*editable, f".[{extra}]" if path == here else f"{path}[{extra}]"]
    if not url:
        return [f"headrace[{extra}]"]
    if vcs := direct.get("vcs_info"):
        revision = vcs.get("requested_revision")
        url = f"{vcs['vcs']}+{url}" + (f"@{revision}" if revision else "")
    folder = direct.get("subdirectory")
    return [f"headrace[{extra}] @ {url}" + (f"#subdirectory={folder}" if folder else "")]
