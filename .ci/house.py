"""Count the facts that decide whether a stranger can read this code, and hold each to its limit.

    python .ci/house.py            # prints the table
    python .ci/house.py --check    # fails if a count is too high, or a limit rose without a record

`limits.toml` has the limits. A limit may fall with any change. A limit above the lowest that it
ever had needs a decision record that says what was bought; its row names the record, and the record
names the row and the limit.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headrace"
DOCS = ROOT / "docs"
# the beginning of a page that a script writes; tests hold each to its script
GENERATED = "<!-- Written by docs/"
# the same, in other pages
TABLES = re.compile(r"^<!-- Tables? by docs/.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
LIMITS = Path(__file__).parent / "limits.toml"

WHAT = re.compile(r"\b[Ww]hat\b(?![^.]*\?)")
THOSE = re.compile(r"\b([Tt]hose|[Tt]hat) (of|that)\b|\bsuch that\b")


def modules(folder: Path = SOURCE) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the modules that are written by hand."""
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text("utf-8")
        if not text.startswith("# Generated"):
            yield path, ast.parse(text)


def docstrings() -> list[str]:
    """Return all docstrings."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    nodes = [node for _, tree in modules() for node in ast.walk(tree) if isinstance(node, kinds)]
    return [text for node in nodes if (text := ast.get_docstring(node))]


def pages() -> dict[str, str]:
    """Return the text of each page that is written by hand, without its code, and the tables that a
    script writes."""
    found: dict[str, str] = {}
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text("utf-8")
        if not text.startswith(GENERATED):
            text = TABLES.sub("", text)
            found[str(path.relative_to(DOCS))] = re.sub(
                r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL
            )
    return found


def sentences(texts: dict[str, str]) -> list[str]:
    """Return the sentences of pages. A cell of a table is one."""
    parts = (
        part
        for text in texts.values()
        for part in re.split(r"(?<=[.:;!?])\s+|\n\n|\n(?=[|*#-])|\|", text)
    )
    return [part for part in parts if len(part.split()) >= 3]


def share(texts: list[str], pattern: re.Pattern[str]) -> float:
    """Return how many of these texts match, in percent."""
    return round(100 * sum(pattern.search(text) is not None for text in texts) / len(texts), 1)


def glossary() -> list[str]:
    """Return the terms of the glossary, in its order."""
    rows = re.findall(
        r"^\| ([^|]+?) \|", (DOCS / "reference" / "glossary.md").read_text("utf-8"), re.MULTILINE
    )
    return [
        row
        for row in rows
        if row not in {"term", "word", "---"} and not set(row) <= {"-", ":", " "}
    ]


def largest_state() -> int:
    """Return the number of fields of the largest mutable class, which are attrs or attributes that
    `__init__` sets."""
    most = 0
    for _, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            decorators = [ast.unparse(one) for one in node.decorator_list]
            if any(one.startswith("define") for one in decorators):
                fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
                most = max(
                    most, sum("ClassVar" not in ast.unparse(item.annotation) for item in fields)
                )
            init = next(
                (
                    one
                    for one in node.body
                    if isinstance(one, ast.FunctionDef) and one.name == "__init__"
                ),
                None,
            )
            if init is not None:
                assigned = [item for item in ast.walk(init) if isinstance(item, ast.Assign)]
                targets = {ast.unparse(target) for item in assigned for target in item.targets}
                most = max(most, sum(target.startswith("self.") for target in targets))
    return most


def most_methods(folder: Path) -> int:
    """Return the number of methods of the class of a folder that has the most."""
    classes = [
        node
        for _, tree in modules(folder)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    return max(sum(isinstance(one, ast.FunctionDef) for one in node.body) for node in classes)


def both_colours() -> int:
    """Count the lines that files of both colours share, written by hand, once `await` is gone."""
    sys.path.insert(0, str(Path(__file__).parent))
    from twins import translated

    pairs = [
        (path, SOURCE / "_net" / "sync" / path.name)
        for path in (SOURCE / "_net" / "aio").glob("*.py")
    ]
    pairs += [(SOURCE / "_engine" / "tasks.py", SOURCE / "_engine" / "threads.py")]
    pairs += [(SOURCE / "_api" / "aio" / "worker.py", SOURCE / "_api" / "sync" / "worker.py")]
    number = 0
    for theirs, ours in pairs:
        if ours.is_file() and not ours.read_text("utf-8").startswith("# Generated"):
            a = [
                line.strip()
                for line in translated(theirs.read_text("utf-8")).splitlines()
                if line.strip()
            ]
            b = [line.strip() for line in ours.read_text("utf-8").splitlines() if line.strip()]
            blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
            number += sum(block.size for block in blocks if block.size >= 6)
    return number


def is_docstring(node: ast.stmt) -> bool:
    """Tell whether a statement is a docstring, or a comment that is written as one."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def is_pair(node: ast.AST) -> bool:
    """Tell whether a statement assigns several values to several names."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and isinstance(node.targets[0], ast.Tuple)
    )


def nests(node: ast.AST) -> bool:
    """Tell whether a conditional expression has another inside."""
    return isinstance(node, ast.IfExp) and any(
        isinstance(inner, ast.IfExp) for inner in ast.walk(node) if inner is not node
    )


def density() -> dict[str, float]:
    """Count statements, and the constructs that press several of them into a line."""
    statements = lines = documented = pairs = nested = long = 0
    for path, tree in modules():
        text = path.read_text("utf-8")
        lines += text.count("\n")
        long += sum(len(line) > 100 for line in text.splitlines())
        for node in ast.walk(tree):
            pairs += is_pair(node)
            nested += nests(node)
            if isinstance(node, ast.stmt) and is_docstring(node):
                documented += (node.end_lineno or node.lineno) - node.lineno + 1
            elif isinstance(node, ast.stmt):
                statements += 1
    return {
        "statements by hand, without docstrings": statements,
        "statements a line, without docstrings": round(statements / (lines - documented), 3),
        "tuple assignments a thousand lines": round(1000 * pairs / lines, 1),
        "conditional expressions inside another": nested,
        "lines over 100 characters, %": round(100 * long / lines, 1),
    }


def first_paragraphs(texts: list[str], mark: str) -> float:
    """Return how many docstrings have a mark inside their first paragraph, in percent."""
    firsts = (text.split("\n\n", 1)[0].rstrip(mark) for text in texts)
    return round(100 * sum(mark in first for first in firsts) / len(texts), 1)


def lowest_limits() -> dict[str, float]:
    """Return the lowest limit that each count had in the history that is here. Without a history
    there is none."""
    lowest: dict[str, float] = {}
    path = LIMITS.relative_to(ROOT).as_posix()
    for commit in git("log", "--format=%H", "--", path).split():
        try:
            rows = tomllib.loads(git("show", f"{commit}:{path}"))
        except tomllib.TOMLDecodeError:
            continue  # the commit that deleted it
        for name, row in rows.items():
            lowest[name] = min(row["limit"], lowest.get(name, row["limit"]))
    return lowest


def unrecorded(
    rows: dict[str, dict[str, Any]], lowest: dict[str, float], root: Path = ROOT
) -> list[str]:
    """Return a complaint about each limit that rose without a decision record."""
    found = []
    for name, row in rows.items():
        if row["limit"] <= lowest.get(name, row["limit"]):
            continue
        record = root / "docs" / "decisions" / str(row.get("record", ""))
        said = record.read_text("utf-8") if record.is_file() else ""
        if name not in said or f"{row['limit']:,}" not in said:
            found.append(
                f"{name}: rose from {lowest[name]:,} to {row['limit']:,}; name a record that says why"
            )
    return found


def git(*arguments: str) -> str:
    """Return the output of git in this checkout. It is empty where there is no history."""
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    return done.stdout


def counts() -> dict[str, float]:
    """Count everything, by the names of `limits.toml`."""
    import headrace
    from headrace._protocol.script import names, script

    texts, docs, code = docstrings(), pages(), [path.read_text("utf-8") for path, _ in modules()]
    said, terms = sentences(docs), glossary()
    words = {name: len(text.split()) for name, text in docs.items()}
    constants = sum(
        isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, int | float)
        and not isinstance(node.value.value, bool)
        for _, tree in modules()
        for node in tree.body
    )
    tests = ROOT / "tests"
    support = [*tests.rglob("conftest.py"), *(tests / "support").glob("*.py")]
    posing = re.compile(r"exec\(eval\(|spec\.python =|SimpleNamespace\(\s*Popen=")
    return {
        "docstrings": len(texts),
        "docstrings whose first paragraph has a colon inside, %": first_paragraphs(texts, ":"),
        "docstrings whose first paragraph has a semicolon, %": first_paragraphs(texts, ";"),
        "docstrings with `what` as a noun clause, %": share(texts, WHAT),
        "docstrings with `those of`, `that of`, `such that`, %": share(texts, THOSE),
        "sentences of docs with `what` as a noun clause, %": share(said, WHAT),
        "sentences of docs with `those of`, `that of`, `such that`, %": share(said, THOSE),
        "words of docs, without generated pages": sum(words.values()),
        "words of the changelog": words["changelog.md"],
        "words of the longest page": max(words.values()),
        "terms of the glossary": len(terms),
        "terms that the glossary has twice": len(terms) - len(set(terms)),
        **density(),
        "lines by hand in both colours": both_colours(),
        "places that ask whether a queue is sharded": sum(
            len(re.findall(r"isinstance\([^()]*\b(Sharded\w*|Plain\w*Queue)\b", text))
            for text in code
        ),
        "fields of the largest class that keeps state": largest_state(),
        "methods of the largest class of _protocol": most_methods(SOURCE / "_protocol"),
        "methods of the largest class of _core/verbs": most_methods(SOURCE / "_core" / "verbs"),
        "modules directly in _core": len([*(SOURCE / "_core").glob("[a-z]*.py")]),
        "names of headrace": len(headrace.__all__),
        "methods of Queue": len([name for name in dir(headrace.Queue) if not name.startswith("_")]),
        "numeric constants of modules": constants,
        "`# fmt: skip`": sum(text.count("# fmt: skip") for text in code),
        "lines of Lua": sum(
            path.read_text("utf-8").count("\n") for path in (SOURCE / "lua").rglob("*.lua")
        ),
        "lines of the largest script as loaded": max(
            script(name).source.count("\n") for name in names()
        ),
        "lines of test support and conftest": sum(
            path.read_text("utf-8").count("\n") for path in support
        ),
        "processes of the tests that pose as Python": sum(
            posing.search(path.read_text("utf-8")) is not None for path in tests.rglob("*.py")
        ),
    }


def main() -> int:
    """Print the table and return whether a count is over its limit."""
    rows = tomllib.loads(LIMITS.read_text("utf-8"))
    found = counts()
    complaints = [f"{name}: has no limit" for name in found.keys() - rows.keys()]
    complaints += [f"{name}: is not counted" for name in rows.keys() - found.keys()]
    complaints += unrecorded(rows, lowest_limits())
    print(f"{'':62} {'count':>8} {'limit':>8} {'goal':>8}")
    for name, row in rows.items():
        count = found.get(name, 0)
        mark = "" if count <= row["limit"] else "  over its limit"
        if mark:
            complaints.append(f"{name}: {count:,} is over its limit")
        print(f"{name:62} {count:8g} {row['limit']:8g} {row['goal']:8g}{mark}")
    subjects = git("log", "--format=%s", "-100").splitlines()
    if subjects:
        long = sum(len(subject) > 72 for subject in subjects)
        print(
            f"{'commit subjects over 72 characters, of the last ' + str(len(subjects)):62} {long:8}"
        )
    print(*complaints, sep="\n")
    return int("--check" in sys.argv and bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
