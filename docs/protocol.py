"""Write docs/reference/redis-protocol.md from the headers of the scripts.

    python docs/protocol.py [--check]

With `--check` nothing is written; the exit status says whether the page is fresh.
"""

from __future__ import annotations

import argparse
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from headrace._keys import BELL, GROUP, PARKED, Keys
from headrace._ops import Ops

PAGE = Path(__file__).parent / "reference" / "redis-protocol.md"

# Every key there is: its type, and what it holds.
PARTS = {
    "jobs": ("stream", f"The jobs that wait or are leased; its one consumer group is `{GROUP}`."),
    "wake": (
        "stream",
        "Tokens that wake a reader blocked on `jobs` when a job was parked: at most 16.",
    ),
    "ids": (
        "hash",
        "Job id → the entry that carries the job, `delayed` or `blocked`; for jobs with an id of their own.",
    ),
    "leases": (
        "zset",
        "Entry → deadline in ms, for leases whose duration is not their worker's own.",
    ),
    "released": (
        "hash",
        "Entry (id, when delayed) → how many of the job's deliveries spent no attempt.",
    ),
    "delayed": ("zset", "Job id → when it is due, in ms of the server's clock."),
    "bodies": ("hash", "Job id → the fields of a delayed job, a flat list packed with cmsgpack."),
    "blocked": ("hash", "Job id → the fields, packed, of a flow's job that waits for its children."),
    "flows": (
        "zset",
        "Id of a flow's job → 0, or what happened to it outside of the flow: 1 completed, 2 died, "  # noqa: ISC004
        "3 cancelled or deleted, 4 redriven, 5 is to be cancelled.",
    ),
    "index": ("zset", "Of a flow: `attribute LF value LF run`, for runs that go on."),
    "flow:<id>": (
        "hash",
        "A run of a flow: `state`, `started`, `ended`, `attributes` (JSON), and for each of its jobs "  # noqa: ISC004
        "`at:<id>` (state and stage), `result:<stage>:<id>`, and what fan-outs need; under a TTL once it has ended.",
    ),
    "dead": (
        "stream",
        "Dead letters, oldest first: `reason`, `worker`, `released`, then the job's own fields.",
    ),
    "workers": (
        "zset",
        "Worker → until when it counts as alive, in ms; 0 once it was declared dead.",
    ),
    "registered": (
        "hash",
        "Worker → `<ms since when its beats are unbroken> <ms that its leases last>`.",
    ),
    "stats": (
        "hash",
        "Since the beginning: `enqueued`, `completed`, `cancelled`, `deleted`, `dead_trimmed`; "  # noqa: ISC004
        "`added` counts the entries that scripts put into `jobs`, to tell them from bare `XADD`s.",
    ),
    "lane:<lane>": (
        "string",
        "The number and the reply of a lane's last call; expires after ten minutes.",
    ),
    "result:<id>": ("string", "What a completion kept; expires after `result_ttl`."),
}

FIELDS = {
    "data": "The payload, never enveloped. The only field a job must have.",
    "id": "The job's id, if it is not the ID of its first entry.",
    "attempt": "Deliveries carried over from earlier entries, when the job went to the back.",
    "enq": "When it was first enqueued, in ms, if that is not the time in the entry's ID.",
    "headrace-flow": "A header: the key of the run's state, for a job of a flow.",
    "any other": "A header: `traceparent`, `tracestate`, `baggage`, or one of yours.",
}

INTRO = """\
<!-- Written by docs/protocol.py from the headers of src/headrace/lua/*.lua. Do not edit. -->

# Redis protocol

This page is the contract between headrace and other languages:
the keys, the fields of an entry, and the scripts with their arguments and replies.
How little of it a producer needs:
[produce from another language](../how-to/produce-from-another-language.md).
"""

SCRIPTS = """\
## Scripts

The files are in the package, under `headrace/lua/`.
A line `-- @include name` stands for the text of `lib/name.lua`;
replace it, send the result with `EVAL`, and then with `EVALSHA`.
`...` in KEYS or ARGV stands for as many as there are.

Where the first key is `lane`, the first argument is `call`.
A client that may send a call again gives each call in flight a lane of its own
(a name drawn at random)
and numbers the calls of a lane.
A call that is sent again under its number is answered from the record of the first.
With `call` empty nothing is recorded, and a repeated call acts again.

Times are integer milliseconds of the server's clock.
Costs are server time, measured on one machine: read them as orders of magnitude.
"""


class Header(NamedTuple):
    """What the first comment of a script says."""

    name: str
    purpose: str
    sections: dict[str, str]  # KEYS, ARGV, REPLY, COST
    notes: str

    def keys(self) -> list[tuple[str, str]]:
        """(name, type) of the keys that are not a variable tail."""
        return re.findall(r"(\w+) \((\w+)\)", self.sections["KEYS"])


def header(name: str) -> Header:
    """Read the header of `lua/<name>.lua`. Raises `ValueError` when it has another form."""
    text = (files("headrace") / "lua" / f"{name}.lua").read_text("utf-8")
    lines: list[str] = []
    for line in text.splitlines():
        if not line.startswith("-- ") or line.startswith("-- @include"):
            break
        lines.append(line[3:])
    title, colon, purpose = lines[0].partition(": ")
    sections: dict[str, str] = {}
    notes: list[str] = []
    last = ""
    for line in lines[1:]:
        if match := re.match(r"(KEYS|ARGV|REPLY|COST)\s+(.*)", line):
            last = match[1]
            sections[last] = match[2]
        elif line.startswith("       ") and last:
            sections[last] += " " + line.strip()
        else:
            last = ""
            notes.append(line)
    if title != name or not colon or list(sections) != ["KEYS", "ARGV", "REPLY", "COST"]:
        raise ValueError(f"{name}.lua: the header must be '-- {name}: …', KEYS, ARGV, REPLY, COST")
    return Header(name, purpose, sections, " ".join(notes))


def names() -> list[str]:
    """All scripts, in alphabetical order."""
    folder = files("headrace") / "lua"
    return sorted(f.name.removesuffix(".lua") for f in folder.iterdir() if f.name.endswith(".lua"))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [
        *lines,
        *("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows),
        "",
    ]


def literal(text: str) -> str:
    """*text* as code, whatever it holds."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def page() -> str:
    """The whole page."""
    keys = Keys.of("emails")
    out = [INTRO, "## Keys", ""]
    out += [
        "`<namespace>:{<group>}:<queue>:<part>`.",
        "The group is the queue's name before its first `/`, and the hash tag:",
        "all keys of a group are in one hash slot.",
        f"The queue `emails` in the default namespace has its jobs in `{keys.part('jobs')}`.",
        "",
    ]
    out += table(("part", "type", "what it holds"), [(f"`{p}`", t, s) for p, (t, s) in PARTS.items()])
    out += ["## Fields of an entry", ""]
    out += table(
        ("field", "meaning"),
        [(f if f == "any other" else f"`{f}`", meaning) for f, meaning in FIELDS.items()],
    )
    out += [
        "## Reserved consumers",
        "",
        f"The group `{GROUP}` has one consumer per worker, and two that are nobody:",
        "",
        f"- `{PARKED}` owns what was released or reclaimed. It is handed out before any new entry.",
        f"- `{BELL}` owns entries that woke a blocked reader and that nobody has leased yet.",
        "  They come next.",
        "",
        "The only command that is not a script is the blocking wait",
        "(how it works: [leases and reclaim](../explanation/leases-and-reclaim.md)):",
        "",
        "```text",
        " ".join(str(word) for word in Ops(keys).wait(1.0)),
        "```",
        "",
        SCRIPTS,
    ]
    for name in names():
        head = header(name)
        out += [f"### {name}", "", head.purpose[0].upper() + head.purpose[1:], ""]
        for section in ("KEYS", "ARGV"):
            text = head.sections[section]
            shown = "none" if text == "(none)" else literal(text)
            out.append(f"- **{section}** {shown}")
        out += [f"- **REPLY** {head.sections['REPLY']}", f"- **COST** {head.sections['COST']}", ""]
        if head.notes:
            out += [head.notes, ""]
    return "\n".join(out).rstrip() + "\n"


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is stale")
    if not parser.parse_args().check:
        PAGE.write_text(page(), "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != page():
        print(f"{PAGE} is stale: run python docs/protocol.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
