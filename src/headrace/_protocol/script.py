"""The loader of a `.lua` file with the fragments it needs. Its header is its signature, with the
names of its keys and arguments.

A script's header is its purpose, KEYS, ARGV, REPLY and COST. From KEYS and ARGV come the locals of
its body (`local lane, jobs = KEYS[1], KEYS[2]`) and the keys that `Op` sends. A key is written
`jobs (stream)`, and `levels...` is a list of any length. An argument is a string, a whole number
(`ttl int`), a number from 1 to 1,000 (`limit count`), or true for '1' (`woken flag`). `items...` is
any number of arguments. Its local has the index in ARGV of the first one.

A fragment declares functions and constants. Their names are unique in `lua/`, so the loader knows
by the names in a script which fragments it needs. It puts them before the body. The line
`-- @fragments` puts the functions that the lines behind it need in its place. To define functions
takes a few µs, which calls that end earlier save. A function that nothing calls is left out. A
table of functions that is passed on as a value keeps all of them. So are lines of comments. A
script that calls `answer` begins with the reply of its record, if it has one.

A feature is a fragment of `lua/features/`, and owns its keys. Its header names them. Keys that
belong together have one owner, so that a script's header names at most eight of its own. A word of
a script that is a key of a feature stands for this key, and so does a field of `q` in a function
that it calls. So no local has the name of a key. The loader appends the keys of features to the
script's own, in the order of `FEATURES`, before a list of any length.

A feature has hooks, which the moves of `lua/kernel/` call. Its header names them, each with the
function, and the key of `q` without which it is not called: `HOOKS  forgets: forget_turns (turns)`.
The line `-- @hooks forgets(q, names)` stands for the calls of all features that have the hook, and
includes them. So a new feature changes neither the kernel nor a script.

The line `-- @queue` in a table stands for the keys that the called functions read as fields of `q`.
`-- @queue without asleep` leaves out keys of the script, or of features: then functions that ask
for such a key do less.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain

from attrs import field, frozen

FEATURES = (
    *(
        "leases",
        "delayed",
        "dead",
        "workers",
        "schedules",
        "transfers",
        "cancellations",
        "events",
        "history",
    ),
    *("runs", "children", "builds", "ordered", "suspects"),
    *("rates", "limits", "fair", "flows", "levels"),
)
"""All features, in the order of their keys. The first are of all queues."""
KERNEL = ("finish", "depart")
"""The moves of a job. Each is a fragment of `lua/kernel/`, which calls the functions of
features."""

_HOOKS = re.compile(r"^( *)-- @hooks (\w+)(\(.*\))\n", re.MULTILINE)
_FRAGMENTS = re.compile(r"^-- @fragments\n", re.MULTILINE)
_QUEUE = re.compile(r"^ *-- @queue(?: without ([\w, ]+))?\n", re.MULTILINE)
_FUNCTION = re.compile(
    r"^(?:--.*\n)*(?:local )?function ([\w.]+)(\(.*\bend\n|\((?:.*\n)+?end\b.*\n)", re.MULTILINE
)
_DECLARED = re.compile(r"^local [\w, ]+=", re.MULTILINE)
_DECLARES = re.compile(
    r"^(?:local )?function ([\w.]+)|^local (?!function)([\w, ]+)|^(\w[\w., ]*) =", re.MULTILINE
)
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*+(?:\.\w++)?+(?!\s*=[^=])")
_TEXTS = re.compile(r"""'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|--[^\n]*""")
_SECTIONS = ("KEYS", "ARGV", "REPLY", "COST")
_COMMENTS = re.compile(r"^ *(?:--.*)?\n", re.MULTILINE)
_HEAD = re.compile(r"\A(?:--.*\n)*")
_HEADER = re.compile(
    r"-- (\w+): (.*)\n"
    + "".join(rf"-- {name:<7}(.*\n(?:-- {{8}}.*\n)*)" for name in _SECTIONS)
    + r"((?:-- (?!@).*\n)*)"
)
_TYPES = {"": "{}", "int": "whole({})", "count": "whole({}, 1, 1000)", "flag": "{} == '1'"}
_AGAIN = "local known = recorded()\nif known then return known end\n"
_FOLDER = files("headrace") / "lua"  # found now: it imports modules, which no call does (`_forks`)


@frozen
class Header:
    name: str
    purpose: str
    sections: dict[str, str]  # KEYS, ARGV, REPLY, COST
    notes: str

    def keys(self) -> list[str]:
        """Return its own keys as they are written, without those of features."""
        return _listed(self.sections["KEYS"])

    def args(self) -> list[str]:
        """Return the names of the arguments. A name that ends in `...` stands for any number of
        arguments."""
        return [name for name, _ in self.typed_args()]

    def typed_args(self) -> list[tuple[str, str]]:
        """Return (name, type) of the arguments. The type is '', 'int', 'count' or 'flag'."""
        pairs = [argument.partition(" ") for argument in _listed(self.sections["ARGV"])]
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
    keys: tuple[str, ...] = ()
    """All its keys, as headers write them. They are its own keys, the keys of features, and a
    variable tail."""
    features: Mapping[str, Sequence[str]] = field(factory=dict[str, Sequence[str]])
    """The keys that it uses of each feature, in the order of the features."""


@cache
def script(name: str) -> Script:
    """Load `lua/<name>.lua`. Raises `ValueError` for a bad header, or for fragments that need each
    other."""
    head = header(name)
    body = _HEAD.sub("", _read(f"{name}.lua"), count=1)
    words = _words(body)
    checks = "".join(_TYPES[kind] for _, kind in head.typed_args())
    again = _AGAIN if "answer" in words and "recorded" not in words else ""
    fragments = _reached(body + checks + again)
    found: list[str] = []
    pieces: list[str] = []
    for part in _FRAGMENTS.split(body):
        first = len(found)
        _collect(_names(part if pieces else part + checks + again), fragments, (), found)
        pieces += ["".join(fragments[one] for one in found[first:]), part]
    queue = _QUEUE.search(body)
    fields = (
        _fields(body, *fragments.values()).difference((queue[1] or "").split(", "))
        if queue
        else set[str]()
    )
    features = _used(head.keys(), words | fields - {"levels"})
    keys = tuple(
        sorted([*head.keys(), *chain(*features.values())], key=lambda key: key.endswith("..."))
    )
    places = {key: f"KEYS[{at}]" for at, key in enumerate(fixed(keys), 1)}
    table = (
        f"{key} = {key if key in words else place}"
        for key, place in places.items()
        if key in fields
    )
    rest = _QUEUE.sub(f"  {', '.join(table)},\n", "".join(pieces[1:]))
    declared = {key: place for key, place in places.items() if key in words}
    parts = [pieces[0], *_locals(declared, keys, head, words), again, rest]
    source = f"-- {name}: see lua/{name}.lua\n" + _COMMENTS.sub("", "".join(parts))
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    recorded = keys[0].startswith("lane ")
    return Script(
        name, source, sha, tuple(places)[recorded:], recorded, "levels..." in keys, keys, features
    )


@cache
def feature(name: str) -> list[str]:
    """Return the keys of a feature, as its header writes them. Raises `ValueError` when that has
    another form."""
    return _listed(_feature(name)[1])


@cache
def hooks(name: str) -> list[tuple[str, str, str]]:
    """Return (hook, function, key) of each hook of a feature, as its header writes them."""
    return re.findall(r"(\w+): ([\w.]+) \((\w+)\)", _feature(name)[2] or "")


def _feature(name: str) -> re.Match[str]:
    head = re.match(
        rf"-- feature {name}: .*\.\n-- KEYS   (.*)\n(?:-- HOOKS  (.*)\n)?",
        _read(f"features/{name}.lua"),
    )
    if head is None:
        raise ValueError(
            f"features/{name}.lua: the header must begin with '-- feature {name}: ….' and '-- KEYS …'"
        )
    return head


def fixed(keys: Sequence[str]) -> list[str]:
    """Return the names of keys that a header writes so, without a variable tail."""
    return [key.partition(" ")[0] for key in keys if not key.endswith("...")]


def _tail(names: Sequence[str]) -> list[str]:
    return [name.removesuffix("...") for name in names if name.endswith("...")]


def _listed(section: str) -> list[str]:
    return section.split(", ") if section != "(none)" else []


def _words(body: str) -> set[str]:
    """Return the words of a body that may be keys or arguments. Fields are left out."""
    return {*re.findall(r"(?<![.\w])(\w+)\b(?!\s*=[^=])", _TEXTS.sub("", body))}


def _fields(*texts: str) -> set[str]:
    code = _TEXTS.sub("", "".join(texts))
    return {*re.findall(r"\bq\.(\w+)\b(?!\s*=[^=])", code)}


@cache
def _homes() -> Mapping[str, str]:
    """Return the fragment of each name that fragments declare."""
    lib = [file.name.removesuffix(".lua") for file in (_FOLDER / "lib").iterdir()]
    return {
        name.strip(): fragment
        for fragment in (*lib, *FEATURES, *KERNEL)
        for names in _DECLARES.findall(_fragment(fragment))
        for name in ",".join(names).split(",")
    }


def _declaring(names: set[str]) -> set[str]:
    homes = _homes()
    return {homes[one] for name in names for one in _rooted(name) if one in homes}


def _reached(body: str) -> dict[str, str]:
    """Return each fragment that a body reaches, without the functions that it does not reach."""
    functions: dict[str, set[str]] = {}
    found: set[str] = set()
    called: set[str] = set()
    reached = _names(body)
    while reached:
        called |= reached
        more: set[str] = set()
        for fragment in _declaring(reached) - found:
            found.add(fragment)
            its, rest = _functions(_fragment(fragment))
            functions |= its
            more |= rest
        more.update(*(functions[name] for name in functions.keys() & reached))
        reached = more - called
    return {one: _without_idle(_fragment(one), called) for one in found}


@cache
def _functions(fragment: str) -> tuple[dict[str, set[str]], set[str]]:
    # the names in each function of a fragment and in each table of functions, and in its other code
    bodies = [(name, _names(body)) for name, body in _FUNCTION.findall(fragment)]
    return {
        called: set[str]().union(*(names for one, names in bodies if called in _rooted(one)))
        for name, _ in bodies
        for called in _rooted(name)
    }, _names(_DECLARED.sub("", _FUNCTION.sub("", fragment)))


def _rooted(name: str) -> set[str]:
    return {name, name.partition(".")[0]}  # a table of functions may be passed on


def _names(code: str) -> set[str]:
    return {*_NAME.findall(_TEXTS.sub("", code))}


def _without_idle(fragment: str, called: set[str]) -> str:
    def kept(function: re.Match[str]) -> str:
        return function[0] if _rooted(function[1]) & called else ""

    return _FUNCTION.sub(kept, fragment)


def _used(own: list[str], read: set[str]) -> dict[str, Sequence[str]]:
    more = {"levels"} if _tail(own) else set[str]()
    found = {
        name: [key for key in feature(name) if {*fixed([key]), *_tail([key])} <= read - more]
        for name in FEATURES
    }
    return {name: keys for name, keys in found.items() if keys}


def _read(path: str) -> str:
    return (_FOLDER / path).read_text("utf-8")


def _file(fragment: str) -> str:
    rooms: Mapping[str, Sequence[str]] = {"features": FEATURES, "kernel": KERNEL, "lib": [fragment]}
    folder = next(name for name, fragments in rooms.items() if fragment in fragments)
    return _read(f"{folder}/{fragment}.lua")


@cache
def _fragment(name: str) -> str:
    return _HOOKS.sub(_calls, _file(name))


def _calls(line: re.Match[str]) -> str:
    """Make the calls of a hook. Each feature that has the hook gets one, in a queue with the key
    that its header names.
    """
    indent, hook, arguments = line.groups()
    return "".join(
        f"{indent}if q.{key} then {function}{arguments} end\n"
        for name in FEATURES
        for its, function, key in hooks(name)
        if its == hook
    )


def _collect(
    names: set[str], fragments: Mapping[str, str], path: tuple[str, ...], found: list[str]
) -> None:
    """Add the fragments that declare these *names* to *found*, each once, after the fragments that
    it needs."""
    for name in sorted(_declaring(names).difference(path[-1:])):
        if name in path:
            raise ValueError(f"lua/lib: {' needs '.join((*path, name))}")
        if name not in found:
            _collect(_names(fragments[name]), fragments, (*path, name), found)
            found.append(name)


def _locals(made: dict[str, str], keys: Sequence[str], head: Header, words: set[str]) -> list[str]:
    # of the keys and the arguments that the body reads
    number = len(fixed(keys))
    values = {
        name: _TYPES[kind].format(f"ARGV[{at}]")
        for at, (name, kind) in enumerate(head.typed_args(), 1)
        if name in words
    }
    lines = [
        f"local {', '.join(some)} = {', '.join(some.values())}\n" for some in (made, values) if some
    ]
    lines += [  # not by unpack, which has a limit
        f"local {tail} = {{}} for i = 1, #KEYS - {number} do {tail}[i] = KEYS[i + {number}] end\n"
        for tail in _tail(keys)
        if tail in words
    ]
    items = {tail: len(head.args()) for tail in _tail(head.args()) if tail in words}
    return lines + [f"local {tail} = {first}\n" for tail, first in items.items()]


def header(name: str) -> Header:
    """Read the header of `lua/<name>.lua`. Raises `ValueError` when it has another form."""
    found = _HEADER.match(_read(f"{name}.lua"))
    if found is None or found[1] != name:
        raise ValueError(f"{name}.lua: the header must be '-- {name}: …', KEYS, ARGV, REPLY, COST")
    purpose, *sections, notes = (
        re.sub(r"\n?--\s+", " ", text).strip() for text in found.groups()[1:]
    )
    return Header(name, purpose, dict(zip(_SECTIONS, sections, strict=True)), notes)


def names() -> list[str]:
    return sorted(f.name.removesuffix(".lua") for f in _FOLDER.iterdir() if f.name.endswith(".lua"))
