"""The words of the code. Docstrings begin with a verb or a noun, programs are no persons, and
constants say their unit.

What a word means is in docs/reference/glossary.md; whether a sentence is true, only a reader can
tell.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import headrace
from headrace._protocol.script import header, names

SRC = Path(headrace.__file__).parent
SUPPORT = Path(__file__).parents[2] / "support"
# hides the subject
CLAUSE = re.compile(r"(?:what|whatever|those|whose|who|whoever|how|which|where)\b", re.IGNORECASE)
# begins no command
NO_VERB = re.compile(r"(?:A|An|The|All|Its|Their|Whether|Not|Once|From|Until|With)\b|[*\d(]")
PERSON = re.compile(r"\b(?:who|whom|whoever|somebody|nobody|anybody|everybody)\b", re.IGNORECASE)
UNITS = {"seconds": "_S", "ms": "_MS", "bytes": "BYTES", "characters": "CHARACTERS"}
BYTES_BY_NATURE = {"SIZE_LIMIT_AT_LEAST"}  # a size is in bytes
TWIN = re.compile(r"Like `(?:(\w+)\.)?(\w+)`")
Found = tuple[str, ast.AST, str]


def docstrings(root: Path) -> Iterator[Found]:
    """Yield (place, node, text) of each docstring below *root*, including docstrings of
    attributes."""
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                place = f"{path.relative_to(root)}:{getattr(node, 'lineno', 1)}"
                if text := ast.get_docstring(node):
                    yield place, node, text
                for before, after in zip(node.body, node.body[1:], strict=False):
                    match before, after:
                        case ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text))):
                            yield f"{path.relative_to(root)}:{after.lineno}", before, text


def lua() -> Iterator[tuple[str, str]]:
    """Yield (place, first words) of each script and fragment."""
    for name in names():
        yield f"lua/{name}.lua", header(name).purpose
    for path in sorted((SRC / "lua").glob("*/*.lua")):
        yield (
            f"lua/{path.parent.name}/{path.name}",
            path.read_text("utf-8").partition("\n")[0].removeprefix("-- "),
        )


@cache
def everything() -> list[Found]:
    """Return all docstrings. They are read when the first test asks, because each process of a run
    imports this file.
    """
    return [*docstrings(SRC), *docstrings(SUPPORT)]


@pytest.mark.slow
def test_no_docstring_begins_with_a_clause() -> None:
    assert not [
        f"{place}: {text}"
        for place, _, text in everything()
        if CLAUSE.match(text) or text[0].islower()
    ]


@pytest.mark.slow
def test_a_function_says_what_it_does() -> None:
    functions = [
        (place, text)
        for place, node, text in everything()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    assert not [f"{place}: {text}" for place, text in functions if NO_VERB.match(text)]


@pytest.mark.slow
def test_no_program_is_a_person() -> None:
    assert not [f"{place}: {text}" for place, _, text in everything() if PERSON.search(text)]


def test_scripts_begin_with_a_verb_or_a_noun() -> None:
    assert not [f"{place}: {text}" for place, text in lua() if CLAUSE.match(text)]


def test_no_script_takes_a_program_for_a_person() -> None:
    comments = [
        (f"{path.relative_to(SRC)}:{number}", line[3:])
        for path in sorted((SRC / "lua").rglob("*.lua"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if line.startswith("-- ")
    ]
    assert not [f"{place}: {text}" for place, text in comments if PERSON.search(text)]


def test_constants_say_their_unit() -> None:
    wrong: list[str] = []
    for path in sorted(SRC.rglob("*.py")):
        for line in path.read_text("utf-8").splitlines():
            match = re.match(r"([A-Z][A-Z_]*) = [\d.]+.*  # (\w+)", line)
            unit = match and UNITS.get(match[2])
            if match and unit and unit not in f"{match[1]}_" and match[1] not in BYTES_BY_NATURE:
                wrong.append(f"{path.relative_to(SRC)}: {line}")
    assert not wrong


@pytest.mark.slow
def test_a_twin_names_one_that_there_is() -> None:
    classes = {
        node.name: {
            part.name
            for part in node.body
            if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
        for _, node, _ in everything()
        if isinstance(node, ast.ClassDef)
    }
    functions = {part for members in classes.values() for part in members} | set(classes)
    functions |= {
        node.name
        for _, node, _ in everything()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    for place, _, text in everything():
        for owner, name in TWIN.findall(text):
            there = any(name in classes[one] for one in (owner, f"Base{owner}") if one in classes)
            assert there if owner else name in functions, f"{place}: {text}"
