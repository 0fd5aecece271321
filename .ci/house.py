"""Count the facts that decide whether a stranger can read this code, and hold each to its limit.

    python .ci/house.py            # prints the table
    python .ci/house.py --check    # fails if a count is over its limit; CI does this

A limit that is above its goal may only fall: lower it whenever a change lowers the count.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headrace"
DOCS = ROOT / "docs"
GENERATED_PAGES = {"reference/redis-protocol.md"}

# Each name has its goal and its limit.
LIMITS: dict[str, tuple[float, float]] = {
    "docstrings with `what` as a noun clause, %": (2, 0.5),
    "docstrings with `those of`, `that of`, `such that`, %": (2, 0.5),
    "sentences of docs with `what` as a noun clause, %": (1, 1),
    "sentences of docs with `those of`, `that of`, `such that`, %": (1.5, 1.5),
    "words of docs, without generated pages": (54_750, 56_000),
    "words of the changelog": (400, 400),
    "words of the longest page": (4_000, 4_000),
    "terms of the glossary": (84, 84),
    "terms that the glossary has twice": (0, 0),
    "lines of Python by hand": (28_000, 41_500),
    "lines by hand in both colours": (150, 40),
    "places that ask whether a queue is sharded": (0, 0),
    "fields of the largest class that keeps state": (16, 16),
    "modules directly in _core": (4, 4),
    "names of headrace": (42, 42),
    "methods of Queue": (18, 21),
    "numeric constants of modules": (180, 218),
    "`# fmt: skip`": (40, 40),
    "lines of test support and conftest": (2_000, 3_850),
    "processes of the tests that pose as Python": (0, 0),
}

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
    """Return the text of each page that is written by hand, without its code."""
    found: dict[str, str] = {}
    for path in sorted(DOCS.rglob("*.md")):
        name = str(path.relative_to(DOCS))
        if name not in GENERATED_PAGES:
            found[name] = re.sub(r"^ *```.*?^ *```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return found


def sentences(texts: dict[str, str]) -> list[str]:
    """Return the sentences of pages; a cell of a table is one."""
    parts = (part for text in texts.values() for part in re.split(r"(?<=[.:;!?])\s+|\n\n|\n(?=[|*#-])|\|", text))
    return [part for part in parts if len(part.split()) >= 3]


def share(texts: list[str], pattern: re.Pattern[str]) -> float:
    """Return how many of these texts match, in percent."""
    return round(100 * sum(pattern.search(text) is not None for text in texts) / len(texts), 1)


def glossary() -> list[str]:
    """Return the terms of the glossary, in its order."""
    rows = re.findall(r"^\| ([^|]+?) \|", (DOCS / "reference" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    return [row for row in rows if row not in {"term", "word", "---"} and not set(row) <= {"-", ":", " "}]


def largest_state() -> int:
    """Return the number of fields of the largest class that changes: attrs, or attributes that `__init__` sets."""
    most = 0
    for _, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            decorators = [ast.unparse(one) for one in node.decorator_list]
            if any(one.startswith("define") for one in decorators):
                fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
                most = max(most, sum("ClassVar" not in ast.unparse(item.annotation) for item in fields))
            init = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
            if init is not None:
                assigned = [item for item in ast.walk(init) if isinstance(item, ast.Assign)]
                targets = {ast.unparse(target) for item in assigned for target in item.targets}
                most = max(most, sum(target.startswith("self.") for target in targets))
    return most


def both_colours() -> int:
    """Count the lines that files of both colours share, written by hand, once `await` is gone."""
    sys.path.insert(0, str(Path(__file__).parent))
    from twins import translated

    pairs = [(path, SOURCE / "_net" / "sync" / path.name) for path in (SOURCE / "_net" / "aio").glob("*.py")]
    pairs += [(SOURCE / "_engine" / "tasks.py", SOURCE / "_engine" / "threads.py")]
    pairs += [(SOURCE / "_api" / "aio" / "worker.py", SOURCE / "_api" / "sync" / "worker.py")]
    number = 0
    for theirs, ours in pairs:
        if ours.is_file() and not ours.read_text("utf-8").startswith("# Generated"):
            a = [line.strip() for line in translated(theirs.read_text("utf-8")).splitlines() if line.strip()]
            b = [line.strip() for line in ours.read_text("utf-8").splitlines() if line.strip()]
            blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
            number += sum(block.size for block in blocks if block.size >= 6)
    return number


def counts() -> dict[str, float]:
    """Count everything."""
    import headrace

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
    values = [
        share(texts, WHAT), share(texts, THOSE), share(said, WHAT), share(said, THOSE),
        sum(words.values()), words["changelog.md"], max(words.values()),
        len(terms), len(terms) - len(set(terms)),
        sum(text.count("\n") for text in code), both_colours(),
        sum(len(re.findall(r"isinstance\([^()]*\b(Sharded\w*|Plain\w*Queue)\b", text)) for text in code),
        largest_state(), len([*(SOURCE / "_core").glob("[a-z]*.py")]),
        len(headrace.__all__), len([name for name in dir(headrace.Queue) if not name.startswith("_")]),
        constants, sum(text.count("# fmt: skip") for text in code),
        sum(path.read_text("utf-8").count("\n") for path in support),
        sum(posing.search(path.read_text("utf-8")) is not None for path in tests.rglob("*.py")),
    ]  # fmt: skip
    return dict(zip(LIMITS, values, strict=True))


def main() -> int:
    """Print the table; return whether a count is over its limit."""
    over = 0
    print(f"{'':62} {'count':>8} {'limit':>8} {'goal':>8}")
    for name, count in counts().items():
        goal, limit = LIMITS[name]
        mark = "" if count <= limit else "  over its limit"
        over += bool(mark)
        print(f"{name:62} {count:8g} {limit:8g} {goal:8g}{mark}")
    log = subprocess.run(["git", "log", "--format=%s", "-100"], capture_output=True, text=True, cwd=ROOT, check=False)
    subjects = log.stdout.splitlines()
    if subjects:
        long = sum(len(subject) > 72 for subject in subjects)
        print(f"{'commit subjects over 72 characters, of the last ' + str(len(subjects)):62} {long:8}")
    return int("--check" in sys.argv and over > 0)


if __name__ == "__main__":
    sys.exit(main())
