"""Every script's header is its contract in a fixed form. The script's body and `Ops` take their
names from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from headrace import NewJob
from headrace._protocol import script as scripts
from headrace._protocol.script import FEATURES, feature, fixed, header, hooks, script
from tests.scripts.calls import CALLS, CLAIMS, OPS
from tests.support.facts import each

FOLDER = files("headrace") / "lua"
NAMES = scripts.names()
FILES = sorted(
    f"{folder}/{Path(str(path)).stem}"
    for folder in ("kernel", "lib", "features")
    for path in (FOLDER / folder).iterdir()
)
"""All fragments, those of features too."""
OWNERS = {key: name for name in FEATURES for key in fixed(feature(name))}
OWN_KEYS_AT_MOST = 8
TYPES = {"string", "stream", "hash", "zset", "list", "channel"}
ARGUMENTS = {"", "int", "count", "flag"}
BUILT_IN = {"error", "ipairs", "next", "pairs", "pcall", "redis", "select", "string", "table"}
BUILT_IN |= {"tonumber", "tostring", "type", "unpack", "math", "cjson", "cmsgpack", "struct"}


@cache
def read(name: str) -> str:
    """Return the file of a script or a fragment."""
    return (FOLDER / f"{name}.lua").read_text("utf-8")


def tail(keys: Sequence[str]) -> str:
    """Return the name of the variable tail of keys, or ''."""
    return keys[-1].removesuffix("...") if keys and keys[-1].endswith("...") else ""


def code(text: str) -> str:
    """Return a source without comments."""
    return re.sub(r"--[^\n]*", "", text)


def bare(path: str) -> str:
    """Return the code of a file without texts and comments."""
    return scripts._TEXTS.sub("", read(path))


def listed(text: str) -> set[str]:
    """Return the names of the locals and the parameters of a text."""
    names = re.findall(r"\b(?:local|for) (?!function)([\w, ]+)", text)
    names += re.findall(r"\bfunction\b[ \w.]*\(([\w, ]*)\)", text)
    names += re.findall(r"\blocal function (\w+)", text)
    return {name.strip() for some in names for name in some.split(",")} - {""}


def made(path: str) -> set[str]:
    """Return the names that a file gives to its locals, parameters and arguments. The names that a
    fragment declares for others are left out."""
    found = listed(bare(path))
    if path in FILES:
        return {name for name in found if scripts._homes().get(name) != Path(path).name}
    arguments = {name.removesuffix("...") for name in header(path).args()}
    return found | arguments


def unnamed(text: str) -> list[str]:
    """Return the text of each `redis.call` or `redis.pcall` that does not begin with the name of a
    command."""
    found = re.findall(r"\bredis\s*(?:\.\s*p?call\b|\[['\"])\s*(.{0,20})", code(text), re.DOTALL)
    named = re.compile(r"\(\s*(['\"])[A-Z]+\1\s*[,)]")
    return [rest for rest in found if not named.match(rest)]


@each("name", NAMES)
def test_the_header_has_its_form(name: str) -> None:
    head = header(name)
    keys = re.findall(r"(\w+) \((\w+)\)", ", ".join(script(name).keys))
    assert len(keys) == len(fixed(script(name).keys))
    assert head.purpose.endswith(".")
    assert keys
    assert {kind for _, kind in keys} <= TYPES
    assert len({key for key, _ in keys}) == len(keys)
    assert {kind for _, kind in head.typed_args()} <= ARGUMENTS
    assert "us" in head.sections["COST"] or "O(" in head.sections["COST"]
    assert all(
        len(line) <= 140
        for line in read(name).splitlines()
        if line.startswith(("-- KEYS", "-- ARGV"))
    )


@each("name", NAMES)
def test_recorded_scripts_have_a_lane_and_a_call(name: str) -> None:
    head, loaded = header(name), script(name)
    assert loaded.recorded == (head.keys()[:1] == ["lane (string)"])
    assert loaded.recorded == (head.args()[:1] == ["call"])
    assert loaded.recorded == ("'PX', '600000'" in loaded.source)
    if name != "enqueue_one":  # keeps its record itself
        assert loaded.recorded == ("= recorded()" in loaded.source)
        assert loaded.recorded == ("return answer(" in read(name))


@each("name", NAMES)
def test_the_body_gets_its_keys_and_arguments_by_name(name: str) -> None:
    """The loader writes the names of the header, and the body uses every one of them."""
    head, source = header(name), script(name).source
    keys = fixed(script(name).keys)
    line, places = re.findall(
        r"^local (.*) = (KEYS\[\d+\](?:, KEYS\[\d+\])*)$", source, re.MULTILINE
    )[0]
    tables = source.replace(f"local {line} = {places}\n", "")
    made = dict(zip(line.split(", "), places.split(", "), strict=True))
    made |= dict(re.findall(r"(\w+) = (KEYS\[\d+\]),", tables))
    assert made == {key: f"KEYS[{at}]" for at, key in enumerate(keys, 1) if key in made}
    assert {*keys} - {*made} <= {"lane"}
    body = code(source.partition(f"local {line} = KEYS")[2].partition("\n")[2])
    arguments = [
        argument for argument in head.args() if argument != "call" and not argument.endswith("...")
    ]
    unused = [
        word
        for word in [*keys, *arguments]
        if word != "lane" and len(re.findall(rf"\b{word}\b", body)) < 1
    ]
    assert not unused
    assert not re.search(r"KEYS\[|ARGV\[\d", code(read(name)))
    local = [
        *keys,
        tail(script(name).keys),
        *(argument.removesuffix("...") for argument in head.args()),
    ]
    assert len(set(local)) == len(local)


@each("name", NAMES)
def test_no_local_of_a_script_has_the_name_of_a_key(name: str) -> None:
    """The loader takes any word of a script that names a key for this key."""
    assert not made(name) & {*OWNERS, *fixed(header(name).keys()), "levels"}


@each("path", [*NAMES, *FILES])
def test_no_local_has_the_name_of_a_function_of_a_fragment(path: str) -> None:
    """The loader takes any word that a fragment declares for the name of the fragment's."""
    assert not made(path) & scripts._homes().keys()


def test_locals_parameters_and_functions_are_found() -> None:
    """A local function `ended` once became the key of the history."""
    text = "local a, b = 1\nfor i = a, b do end\nlocal function ended(q, entry) end\ncall(function(c) end)"
    assert listed(text) == {"a", "b", "i", "ended", "q", "entry", "c"}


def test_a_name_is_declared_by_one_fragment() -> None:
    every = [
        name.strip()
        for path in FILES
        for names in scripts._DECLARES.findall(read(path))
        for name in {*",".join(names).split(",")} - {""}
        if "." not in name
    ]
    homes = {(name, scripts._homes()[name]) for name in every}
    assert len({name for name, _ in homes}) == len(homes)
    for path in FILES:
        for names in scripts._DECLARES.findall(read(path)):
            for name in {*",".join(names).split(",")} - {""}:
                assert scripts._homes()[name.strip()] == Path(path).name


@each("name", NAMES)
def test_every_function_that_a_script_calls_is_there(name: str) -> None:
    source = scripts._TEXTS.sub("", script(name).source)
    there = listed(source) | BUILT_IN | {*re.findall(r"\bfunction (\w+)", source)}
    called = set(re.findall(r"(?<![\w.:])(\w+)(?:\.\w+)*\(", source))
    assert called - there <= {"and", "or", "not", "if", "return", "in", "function", "while"}


@each("path", FILES)
def test_no_fragment_overwrites_a_key(path: str) -> None:
    """A list with the name of a key was once sent to Redis in place of the key."""
    written = {*re.findall(r"\bq\.(\w+)(?=[\w., ]* = )", code(read(path)))}
    assert not written & {key for name in NAMES for key in fixed(script(name).keys)}


@each("name", NAMES)
def test_the_own_header_of_a_script_names_few_keys(name: str) -> None:
    """Keys that belong together have an owner: a feature, whose fragment names them for all
    scripts."""
    assert len(header(name).keys()) <= OWN_KEYS_AT_MOST


@each("name", NAMES)
def test_the_own_header_of_a_script_names_no_key_of_a_feature(name: str) -> None:
    assert not {*header(name).keys()} & {key for one in FEATURES for key in feature(one)}
    assert not {*fixed(header(name).keys())} & OWNERS.keys()


def by_hand(name: str) -> list[str]:
    """Return the keys that a script puts into a table itself."""
    keys = fixed(script(name).keys)
    return [key for key in re.findall(r"\b(\w+) = \1\b(?=[,}])", code(read(name))) if key in keys]


def test_the_loader_makes_the_tables_of_keys() -> None:
    """Scripts of fair queues, and fast paths that need few keys, do it by hand."""
    fair = {"lease_fair", "line_up", "shares"}
    assert {name: by_hand(name) for name in NAMES if name not in fair and by_hand(name)} == {
        "complete": ["held", "slots", "settled", "stopped", "wake", "links"]
    }


QUEUES = {
    name: found[1].split(", ") if found[1] else []
    for name in NAMES
    if (found := scripts._QUEUE.search(read(name)))
}


@each("name", QUEUES)
def test_a_table_of_keys_has_those_that_are_read(name: str) -> None:
    """A key that the table lacked would be read as absent."""
    source = script(name).source
    rows = re.findall(r"^  (?:\w+ = [\w\[\]]+, ?)+$", code(source), re.MULTILINE)
    table = {key for row in rows for key in re.findall(r"(\w+) =", row)}
    body = read(name).partition("\n")[2]
    reads = scripts._fields(body, source) & {*fixed(script(name).keys)}
    assert reads
    assert reads - table == {*QUEUES[name]} & reads
    # the script puts them there itself
    own = {key for key in QUEUES[name] if re.search(rf"\b{key} = ", code(body))}
    assert {*QUEUES[name]} - own <= scripts._fields(body, source)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("return a(q.four)\n", ["a", "d"]),
        ("function parts.x()\n  return q.five\nend\nt.c() -- a(q)\n", ["t.c", "d"]),
        ("q.t = {c = e}\n", ["e", "d"]),
        ("pass(t)\n", ["t.b", "t.c", "d"]),
        ("t.c = a\n", ["a", "d"]),
    ],
)
def test_functions_that_nothing_calls_are_left_out(
    monkeypatch: pytest.MonkeyPatch, body: str, left: list[str]
) -> None:
    fragment = (
        "local t = {}\n-- Of one line.\nlocal function a(q) return q.one end\n"
        "function t.b(q)\n  if q then\n    return q.t.c\n  end\nend\n"
        "function t.c(q)\n  q.two = q.three\nend\n"
        "local function d() return 1 end\nlocal function e() return 't.b' end\nlocal f = d()\n"
    )
    homes = dict.fromkeys(["t", "a", "t.b", "t.c", "d", "e", "f"], "one")
    monkeypatch.setattr(scripts, "_homes", lambda: homes)
    monkeypatch.setattr(scripts, "_fragment", {"one": fragment}.get)
    kept = scripts._reached(body)["one"]
    assert {*re.findall(r"function ([\w.]+)", kept)} == {*left}
    assert ("Of one line" in kept) == ("a" in left)
    assert "local t = {}\n" in kept
    assert kept.endswith("local f = d()\n")


def test_a_key_belongs_to_one_feature() -> None:
    every = [key.partition(" ")[0] for name in FEATURES for key in feature(name)]
    assert len(every) == len({*every})
    assert {path.removeprefix("features/") for path in FILES if path.startswith("features/")} == {
        *FEATURES
    }


def test_keys_of_features_come_behind_own_keys_and_in_the_order_of_the_features() -> None:
    keys = fixed(script("retry").keys)
    own = fixed(header("retry").keys())
    assert keys[: len(own)] == own
    behind = keys[len(own) :]
    assert behind[:3] == ["leases", "released", "limited"]
    order = [OWNERS[key] for key in behind]
    assert order == sorted(order, key=FEATURES.index)
    assert [*script("retry").features] == [*dict.fromkeys(order), "levels"]


HOOKS = {hook for name in FEATURES for hook, _, _ in hooks(name)}


@each("name", FEATURES)
def test_a_hook_is_a_function_of_its_feature(name: str) -> None:
    """It is not called in a queue without a certain key of the feature."""
    for _, function, key in hooks(name):
        assert f"function {function}(q, " in read(f"features/{name}")
        assert OWNERS[key] == name


def test_each_hook_is_called_and_has_a_function() -> None:
    called = [hook for path in FILES for _, hook, _ in scripts._HOOKS.findall(read(path))]
    assert sorted(called) == sorted(HOOKS)


@pytest.fixture
def anew() -> Iterator[None]:
    """Let the loader read all files again, and once more behind the test."""
    caches = [one.cache_clear for one in vars(scripts).values() if hasattr(one, "cache_clear")]
    for clear in caches:
        clear()
    yield
    for clear in caches:
        clear()


@pytest.mark.usefixtures("anew")
def test_a_new_feature_changes_no_other_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys come with its hooks to each script in which leases end; its fragment comes before
    the kernel's."""
    text = "-- feature tags: x.\n-- KEYS   tags (hash)\n-- HOOKS  finishes: drop (tags), forgets: drop (tags)\n"
    text += "local function drop(q, names) redis.call('HDEL', q.tags, unpack(names)) end\n"
    plain = scripts._read
    monkeypatch.setattr(
        scripts, "_read", lambda path: text if path == "features/tags.lua" else plain(path)
    )
    monkeypatch.setattr(scripts, "FEATURES", (*FEATURES, "tags"))
    for name, call in (("release", "drop(q, entries, how)"), ("purge", "drop(q, names)")):
        made = script(name)
        assert "tags (hash)" in made.keys
        assert f"  if q.tags then {call} end\n" in made.source
        assert made.source.index("local function drop(") < made.source.index(
            f"if q.tags then {call}"
        )
    assert "tags" not in script("renew").source


@pytest.mark.usefixtures("anew")
def test_a_feature_without_a_header_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "_read", lambda _: "-- Limits.\n")
    with pytest.raises(ValueError, match=r"features/limits\.lua: the header must begin"):
        feature("limits")


def test_fragments_that_need_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    homes = {"one": "first", "two": "second"}
    monkeypatch.setattr(scripts, "_homes", lambda: homes)
    fragments = {"first": "local function one() two() end", "second": "function two() one() end"}
    with pytest.raises(ValueError, match="first needs second needs first"):
        scripts._collect({"one"}, fragments, (), [])


def test_every_function_of_a_fragment_is_in_a_script() -> None:
    every = {name for path in FILES for name, _ in scripts._FUNCTION.findall(read(path))}
    sources = "".join(script(name).source for name in NAMES)
    assert every <= {*re.findall(r"function ([\w.]+)\(", sources)}


SOURCES = sorted(
    path
    for path in Path(str(files("headrace"))).rglob("*")
    if path.suffix in (".lua", ".py") and "redis" in path.read_text("utf-8")
)


@each("path", SOURCES, ids=lambda path: path.name)
def test_each_call_names_its_command(path: Path) -> None:
    """Some managed clusters refuse a script whose command is not a literal."""
    assert not unnamed(path.read_text("utf-8"))


@each(
    "text",
    [
        "redis.call(command, key)",
        "redis.pcall(\n  length, key)",
        "redis.call('X' .. 'ADD', key)",
        "redis.call(there and 'HGET' or 'GET', key)",
        "local call = redis.call\n",
        "redis['call'](command)",
    ],
)
def test_a_call_without_a_command_of_its_own_is_found(text: str) -> None:
    assert unnamed(text)


@each("path", FILES)
def test_every_fragment_says_what_it_is(path: str) -> None:
    assert read(path).startswith("-- ")


@each("name", NAMES)
def test_as_many_arguments_are_sent_as_the_header_names(name: str) -> None:
    head, op = header(name), CALLS[name].sample
    wire = op.wire("EVALSHA", "l", "1")
    keys = wire[3 : 3 + int(wire[2])]
    arguments = wire[3 + int(wire[2]) :]
    assert op.script.name == name
    named = fixed(script(name).keys)
    given = [argument for argument in head.args() if not argument.endswith("...")]
    all_levels = {"drained", "wipe", "run_schedule"}
    # of the other queue, or of all levels
    others = {"move": 10, "accept": 9, "adopt": 9, "child": 10, "reports": 1}
    more = others.get(name, 9 * (name in all_levels))
    if "flow" in name:
        assert len(keys) >= len(named)
    else:
        assert len(keys) == len(named) + more
    assert (
        len(arguments) > len(given)
        if len(given) < len(head.args())
        else len(arguments) == len(given)
    )
    if script(name).recorded:
        assert keys[0] == op.lane_prefix + "l"
        assert arguments[0] == "1"
    near = "" if "flow" in name else "/orders:"
    if name == "shards":  # of the group
        assert keys == ("headrace:{shop}:shards",)
        return
    own = len(keys) if "flow" in name or name in all_levels else len(named)
    assert all(str(key).startswith("headrace:{shop}:shop" + near) for key in keys[:own])
    ours = {"accept": "orders:jobs:", "adopt": "orders:jobs:", "reports": "orders:reports:"}
    rest = ours.get(name, "bills:")
    assert all(str(key).startswith(f"headrace:{{shop}}:shop/{rest}") for key in keys[own:])


def test_keys_of_results_and_followers_come_after_the_others() -> None:
    """The keys are in the same slot as the others. Each queue of a follow-up job has nine keys."""
    then = [NewJob(b"y"), NewJob(b"z", queue="shop/bills")]
    op = OPS.complete(CLAIMS[:1], results={"1-0": b"r"}, then=then)
    extra = [
        key.removeprefix("headrace:{shop}:") for key in op.keys[len(script("complete").key_names) :]
    ]
    follow = ["jobs", "wake", "ids", "delayed", "bodies", "stats", "cancels", "events", "jobs"]
    expected = ["shop/orders:result:1-0", *(f"shop/orders:{part}" for part in follow)]
    assert extra == expected + [f"shop/bills:{part}" for part in follow]
    assert tail(script("complete").keys) == "others"


@each("name", [name for name in NAMES if script(name).levelled])
def test_the_streams_of_levels_are_the_keys_behind_all_others(name: str) -> None:
    assert tail(script(name).keys) == "levels"
    first = len(fixed(script(name).keys))
    line = f"local levels = {{}} for i = 1, #KEYS - {first} do levels[i] = KEYS[i + {first}] end\n"
    assert line in script(name).source
