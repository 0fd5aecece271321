"""Write the classes for threads from the classes for asyncio. They are files in folders `sync` of
`headrace`.

    python .ci/twins.py            # writes the files
    python .ci/twins.py --check    # fails if a file differs from its translation; CI does this

The files for asyncio are the source. `await` goes, `async def` becomes `def`, and names lose their
`Async`; the tables below hold the few words that differ besides. What really differs between the
colours stands in other files, by hand: `colour.py` has the parts of asyncio, or of threads, that
the others use.
"""

from __future__ import annotations

import io
import itertools
import re
import subprocess
import sys
import textwrap
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headrace"
FILES = {  # by the folder of a colour
    "_api/{}": ["admin", "completed", "events", "flow", "inspector", "lease", "queue", "tasks"],
    "sql/_{}": ["relay"],
    "_net/{}": [
        "cluster",
        "driver",
        "keeping",
        "listening",
        "steps",
        "subscription",
        "trips",
        "undoing",
        "waiters",
    ],
}
WIDTH = 120
HEADER = "# Generated from `{source}` by .ci/twins.py: edit that file.\n"

NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "StopAsyncIteration": "StopIteration",
    "_aio": "_sync",
    "aio": "sync",
    "relay_once_async": "relay_once",
}
KEPT = {"AsyncIterable"}  # a stream of jobs may be either
TEXTS = {  # in docstrings, comments and messages
    "an asynchronous iterator": "an iterator",
    "For one event loop.": "One object may be shared by threads, and survives a fork.",
    "for asyncio": "for threads",
    "redis.asyncio.Redis": "redis.Redis",
    " *jobs* may be asynchronous.": "",
}


def name(word: str) -> str:
    """Return the word that stands for *word* in the other colour."""
    if word in NAMES or word in KEPT:
        return NAMES.get(word, word)
    return re.sub(r"^(_?)Async(?=[A-Z])", r"\1", word)


def text(words: str) -> str:
    """Return a docstring, comment or message in the other colour."""
    for ours, theirs in TEXTS.items():
        words = words.replace(ours, theirs)
    words = re.sub(r"\bawait\s+(?=[\w`])", "", words)
    words = re.sub(r"\basync (?=with |for )", "", words)
    return re.sub(r"\bAsync(?=[A-Z])", "", words)


def translated(source: str) -> str:
    """Return a module for threads, made of one for asyncio."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    dropped = {*awaits(tokens)}
    out: list[str] = []
    row, column = 1, 0
    for number, token in enumerate(tokens):
        (first, begin), (row_after, column_after) = token.start, token.end
        gap = token.line[column:begin] if first == row else token.line[:begin]
        if first > row:
            column = 0
        if number in dropped:
            out.append(gap)
            after = tokens[number + 1]
            follows = token.string != ")" and after.start[0] == row_after
            row, column = row_after, after.start[1] if follows else column_after
            continue
        if token.type == tokenize.NAME:
            out.append(gap + name(token.string))
        elif token.type in {tokenize.STRING, tokenize.COMMENT}:
            out.append(gap + text(token.string))
        else:
            out.append(gap + token.string)
        row, column = row_after, column_after
    return "".join(out)


def awaits(tokens: list[tokenize.TokenInfo]) -> list[int]:
    """Return the places of `await` and `async`, and of parentheses that only an `await` needs."""
    found: list[int] = []
    for number, token in enumerate(tokens):
        if token.string not in {"await", "async"}:
            continue
        found.append(number)
        before, earlier = tokens[number - 1], tokens[number - 2]
        grouped = before.string == "(" and (
            (earlier.type == tokenize.OP and earlier.string not in {")", "]"})
            or earlier.string in {"return", "in", "if"}
        )
        if grouped and (end := only_a_call(tokens, number + 1)) is not None:
            found += [number - 1, end]
    return found


def only_a_call(tokens: list[tokenize.TokenInfo], start: int) -> int | None:
    """Return where the parenthesis around `await` closes, if there is only one call within."""
    depth = 0
    for number in range(start, len(tokens)):
        word = tokens[number].string
        if word in {"(", "[", "{"}:
            depth += 1
        elif word in {")", "]", "}"}:
            depth -= 1
            if depth < 0:
                return number if tokens[number].start[0] == tokens[start].start[0] else None
        elif depth == 0 and not (
            (tokens[number].type == tokenize.NAME and word not in {"or", "and", "if"})
            or word == "."
        ):
            return None
    return None


def refilled(module: str) -> str:
    """Wrap each paragraph of a docstring that has a line longer than `WIDTH`."""
    out: list[str] = []
    for paragraph in re.split(r"(\n\s*\n)", module):
        lines = paragraph.split("\n")
        long = next(
            (i for i, line in enumerate(lines) if len(line) > WIDTH and "  # " not in line), None
        )
        if long is not None and (indent := re.match(r" *", lines[long])) is not None:
            below = lines[long + 1 :]
            rest = list(
                itertools.takewhile(
                    lambda line: line.strip() != '"""' and not line.lstrip().startswith("- "), below
                )
            )
            words = textwrap.wrap(
                " ".join(line.strip() for line in [lines[long], *rest]), WIDTH - len(indent[0])
            )
            lines[long : long + 1 + len(rest)] = [indent[0] + line for line in words]
        out.append("\n".join(lines))
    return "".join(out)


def formatted(module: str, path: Path) -> str:
    """Sort the imports of a module, drop those it does not need, and format it."""
    for command in (
        ["check", "--fix-only", "--select", "I,F401", "--quiet"],
        ["format", "--quiet"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=module, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60,
        )  # fmt: skip
        module = done.stdout
    return module


def main() -> int:
    """Write the files, or check them."""
    stale: list[str] = []
    for room, file in [(room, file) for room, files in FILES.items() for file in files]:
        source, path = (SOURCE / room.format(colour) / f"{file}.py" for colour in ("aio", "sync"))
        made = HEADER.format(source=source.relative_to(ROOT / "src")) + translated(
            source.read_text("utf-8")
        )
        made = formatted(refilled(made), path)
        if "--check" not in sys.argv:
            path.write_text(made, "utf-8")
        elif not path.is_file() or path.read_text("utf-8") != made:
            stale.append(str(path.relative_to(ROOT)))
    if stale:
        print(f"not as generated: {', '.join(stale)}; edit the files in aio, then run: poe twins")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
