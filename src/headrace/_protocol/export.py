"""The protocol as data, for clients in other languages: the scripts in full, fixed names, rules, limits, defaults."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any, NamedTuple

from headrace import _keys as keys
from headrace._execute import AGAIN, BUDGET
from headrace._op import script
from headrace._ops import BATCH, SIZE, Ops
from headrace._settings import HEADERS, OWN, QueueSettings, WorkerSettings, millis


class Header(NamedTuple):
    """What the first comment of a script says."""

    name: str
    purpose: str
    sections: dict[str, str]  # KEYS, ARGV, REPLY, COST
    notes: str

    def keys(self) -> list[tuple[str, str]]:
        """(name, type) of the keys that are not a variable tail."""
        return re.findall(r"(\w+) \((\w+)\)", self.sections["KEYS"])

    def args(self) -> list[str]:
        """The names of the arguments; one that ends in `...` stands for as many as there are."""
        text = self.sections["ARGV"]
        return [] if text == "(none)" else text.split(", ")


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


def protocol() -> dict[str, Any]:
    """All that a client needs and should not copy by hand; made of JSON's types."""
    queue, worker = QueueSettings(), WorkerSettings()
    template = keys.Keys("<queue>", "<group>", "<namespace>:{<group>}:<queue>:")
    wait, pause = ([str(word) for word in Ops(template).wait(1.0, paused=paused)] for paused in (False, True))
    for words in (wait, pause):
        words[words.index("BLOCK") + 1] = "<ms>"
    return {
        "key": template.part("<part>"),
        "lane": template.lane("<lane>"),
        "result": template.result("<id>"),
        "flow": template.flow("<run>"),
        "group": keys.GROUP,
        "parked": keys.PARKED,
        "bell": keys.BELL,
        "fields": list(OWN),
        "names": {
            "namespace": f"^{keys.NAMESPACE.pattern}$",
            "queue": f"^{keys.QUEUE.pattern}$",
            "queue_characters": keys.QUEUE_CHARACTERS,
            "worker": f"^{keys.WORKER.pattern}$",
            "never_in_id": keys.CONTROL.pattern,
            "id_bytes": keys.ID_BYTES,
        },
        "limits": {"jobs": BATCH, "bytes": SIZE, "headers": HEADERS},
        "defaults": {
            "namespace": Ops(template).namespace,
            "lease": millis(queue.lease),
            "heartbeat": millis(worker.heartbeat),
            "timeout": millis(worker.timeout),
            "max_attempts": queue.max_attempts or 0,
            "dead_limit": queue.dead_limit,
            "result_ttl": millis(queue.result_ttl),
            "budget": millis(BUDGET),
        },
        "again": list(AGAIN),
        "wait": wait,
        "wait_paused": pause,
        "scripts": {
            name: {
                "sha1": script(name).sha,
                "keys": list(dict(header(name).keys())),
                "args": header(name).args(),
                "source": script(name).source,
            }
            for name in names()
        },
    }
