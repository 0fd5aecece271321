"""The console, SQL, Django and agents are guests. They import no private name of the core or of
another guest."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import headrace.platform as door
from tests.support.facts import each

SOURCE = Path(__file__).parents[3] / "src" / "headrace"
GUESTS = {
    "console": ["console", "web.py", "__main__.py"],
    "sql": ["sql"],
    "django": ["django"],
    "pydantic_ai": ["pydantic_ai.py"],
}
AT_MOST = 39  # names of the door


def files(guest: str) -> list[Path]:
    roots = [SOURCE / name for name in GUESTS[guest]]
    return [
        file
        for root in roots
        for file in ([root] if root.is_file() else sorted(root.rglob("*.py")))
    ]


def private_names(guest: str, file: Path) -> list[str]:
    """The private names that a module imports of the core or another guest, and private attributes
    that it reads."""
    text = file.read_text("utf-8")
    own = f"headrace.{guest}."
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{one.name}" for one in node.names]
        elif isinstance(node, ast.Constant) and re.fullmatch(r"headrace[\w.]+", str(node.value)):
            # the name of a module for `import_module`
            found.append(str(node.value))
    taken = [
        name
        for name in found
        if re.match(r"headrace\..*\b_(?!_)", name) and not name.startswith(own)
    ]
    return taken + ["SLF001"] * text.count("noqa: SLF001")


@each(["guest", "file"], [(guest, file) for guest in GUESTS for file in files(guest)])
def test_guests_take_no_private_name(guest: str, file: Path) -> None:
    assert private_names(guest, file) == []


@each("name", door.__all__)
def test_the_door_documents_each_name(name: str) -> None:
    assert f"`{name}`" in (door.__doc__ or "")


def test_the_door_is_small() -> None:
    assert len(door.__all__) <= AT_MOST
