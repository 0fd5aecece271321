"""Loader of a `.lua` file with the fragments it needs. Its header is its signature: the names of its keys and
arguments.

A script's header is its purpose, KEYS, ARGV, REPLY and COST. From KEYS and ARGV come the locals of its body (`local
lane, jobs = KEYS[1], KEYS[2]`) and the keys that `Op` sends. A key is written `jobs (stream)`, and `levels...` is a
list of any length. An argument is a string, a whole number (`ttl int`), a number from 1 to 1,000 (`limit count`), or
true for '1' (`woken flag`). `items...` is any number of arguments; its local has the index in ARGV of the first one.

Fragments are put before the body, or in its middle where they are included there. To define their functions takes a few
µs, which calls that end earlier save.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from attrs import frozen

_INCLUDE = re.compile(r"^-- @include (\w+)\n", re.MULTILINE)
_GROUP = re.compile(r"((?:^-- @include \w+\n)+)", re.MULTILINE)
_SECTION = re.compile(r"(KEYS|ARGV|REPLY|COST)\s+(.*)")
_TYPES = {"": "{}", "int": "whole({})", "count": "whole({}, 1, 1000)", "flag": "{} == '1'"}
_FOLDER = files("headrace") / "lua"  # found now: it imports modules, which no call does (`_forks`)
_NUMBERS = "number"  # the fragment that numbers need


@frozen
class Header:
    """The first comment of a script, in its parts."""

    name: str
    purpose: str
    sections: dict[str, str]  # KEYS, ARGV, REPLY, COST
    notes: str

    def named_keys(self) -> list[tuple[str, str]]:
        """Return (name, type) of each named key, without the variable tail."""
        return re.findall(r"(\w+) \((\w+)\)", self.sections["KEYS"])

    def more_keys(self) -> str:
        """Return the name of the variable tail of keys, or ''."""
        tail = self.sections["KEYS"].rpartition(", ")[2]
        return tail.removesuffix("...") if tail.endswith("...") else ""

    def args(self) -> list[str]:
        """Return the names of the arguments. A name that ends in `...` stands for any number of arguments."""
        return [name for name, _ in self.typed_args()]

    def typed_args(self) -> list[tuple[str, str]]:
        """Return (name, type) of the arguments; the type is '', 'int', 'count' or 'flag'."""
        text = self.sections["ARGV"]
        pairs = [argument.partition(" ") for argument in text.split(", ")] if text != "(none)" else []
        return [(name, kind) for name, _, kind in pairs]


@frozen
class Script:
    """A `.lua` file of the package with its fragments included, and its SHA1."""

    name: str
    source: str
    sha: str
    key_names: tuple[str, ...] = ()
    """The names of its fixed keys, without the lane's key."""
    recorded: bool = False
    """Whether its first key is a lane and its first argument a call number."""
    levelled: bool = False
    """Whether its last keys are the streams of the queue's priority levels after the first."""


@cache
def script(name: str) -> Script:
    """Load `lua/<name>.lua`. Raises `ValueError` for a bad header, or for fragments that include each other."""
    head = header(name)
    comment, wanted, body = _apart(_read(f"{name}.lua"))
    numbers = [_NUMBERS] if any(kind in ("int", "count") for _, kind in head.typed_args()) else []
    fragments: list[str] = []
    _collect([*numbers, *wanted], (), fragments)
    pieces = [comment, *map(_fragment, fragments), *_locals(head, body, "record" in fragments)]
    found = fragments
    for part, wanted in _divided(body):
        pieces.append(part)
        found, before = found.copy(), len(found)
        _collect(wanted, (), found)
        pieces += map(_fragment, found[before:])
    source = "".join(pieces)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    key_names = [key for key, _ in head.named_keys()]
    recorded = key_names[:1] == ["lane"]
    return Script(name, source, sha, tuple(key_names[recorded:]), recorded, head.more_keys() == "levels")


def _read(path: str) -> str:
    return (_FOLDER / path).read_text("utf-8")


def _fragment(name: str) -> str:
    return _INCLUDE.sub("", _read(f"lib/{name}.lua"))


def _apart(text: str) -> tuple[str, list[str], str]:
    """Split a script into its header, without includes, its includes, and its body."""
    head = re.match(r"(?:--.*\n)*", text)
    end = head.end() if head else 0
    return _INCLUDE.sub("", text[:end]), _INCLUDE.findall(text[:end]), text[end:]


def _divided(body: str) -> Iterator[tuple[str, list[str]]]:
    """Split a body behind its groups of includes: the code before a group runs without these fragments."""
    parts = [*_GROUP.split(body), ""]
    for part, group in zip(parts[::2], parts[1::2], strict=True):
        yield part, _INCLUDE.findall(group)


def _collect(wanted: list[str], path: tuple[str, ...], found: list[str]) -> None:
    """Add the *wanted* fragments to *found*, each once, after the fragments that it includes."""
    for name in wanted:
        if name in path:
            raise ValueError(f"lua/lib: {' includes '.join((*path, name))}")
        if name not in found:
            _collect(_INCLUDE.findall(_read(f"lib/{name}.lua")), (*path, name), found)
            found.append(name)


def _locals(head: Header, body: str, recording: bool) -> list[str]:
    """Make the lines that declare keys and arguments as locals. *recording*: a fragment declares the call's number."""
    keys = [name for name, _ in head.named_keys()]
    lines = [f"local {', '.join(keys)} = {', '.join(f'KEYS[{i}]' for i in range(1, len(keys) + 1))}\n"]
    more = head.more_keys()
    if more and re.search(rf"\b{more}\b", body):
        # not by unpack, which has a limit
        lines.append(f"local {more} = {{}} for i = 1, #KEYS - {len(keys)} do {more}[i] = KEYS[i + {len(keys)}] end\n")
    given = [(i, *arg) for i, arg in enumerate(head.typed_args(), 1) if not arg[0].endswith("...")]
    args = given[1:] if recording else given
    if args:
        values = (_TYPES[kind].format(f"ARGV[{i}]") for i, _, kind in args)
        lines.append(f"local {', '.join(name for _, name, _ in args)} = {', '.join(values)}\n")
    names = head.args()
    tail = names[-1].removesuffix("...") if names and names[-1].endswith("...") else ""
    if tail and re.search(rf"\b{tail}\b", body):
        lines.append(f"local {tail} = {len(names)}\n")
    return lines


def header(name: str) -> Header:
    """Read the header of `lua/<name>.lua`. Raises `ValueError` when it has another form."""
    lines: list[str] = []
    for line in _read(f"{name}.lua").splitlines():
        if not line.startswith("-- ") or line.startswith("-- @include"):
            break
        lines.append(line[3:])
    title, colon, purpose = lines[0].partition(": ")
    sections: dict[str, str] = {}
    notes: list[str] = []
    last = ""
    for line in lines[1:]:
        if match := _SECTION.match(line):
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
    """List all scripts, in alphabetical order."""
    return sorted(f.name.removesuffix(".lua") for f in _FOLDER.iterdir() if f.name.endswith(".lua"))
