"""Every script is headed by its contract, in a fixed form, and the header, the script and `_ops` agree."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from attrs import frozen

from headrace import NewJob
from headrace._flow_ops import Staged
from headrace._job import Claim, Job, Ticking
from headrace._keys import Keys
from headrace._op import Op, script
from headrace._ops import _KEYS, Ops
from headrace._schedule import Timing
from headrace._settings import QueueSettings, Rate

FOLDER = files("headrace") / "lua"
NAMES = sorted(Path(str(path)).stem for path in FOLDER.iterdir() if str(path).endswith(".lua"))
FRAGMENTS = sorted(Path(str(path)).stem for path in (FOLDER / "lib").iterdir())
TYPES = {"string", "stream", "hash", "zset", "channel"}
ALIASES = {
    "wake_stream": "wake",
    "n": "limit",
    "fetched": "limit",
    "following": "next",
}  # names that a body gives to what its header calls
OTHERS = {"result", "flow_read"}  # all of their keys depend on their arguments
_BINDING = re.compile(r"^local ([\w, ]+) = (.*(?:KEYS|ARGV)\[\d+\].*)$", re.MULTILINE)
_VALUE = re.compile(r"(?:tonumber\()?(KEYS|ARGV)\[(\d+)\]\)?(?: == '1')?")


@frozen
class Header:
    """The head of a script."""

    purpose: str
    keys: list[tuple[str, str]]
    more_keys: bool
    arguments: list[str]
    more_arguments: bool
    reply: str
    cost: str
    includes: list[str]
    body: str


def header(name: str) -> Header:
    """Read the head of *name*, which must have its sections in this order."""
    text = (FOLDER / f"{name}.lua").read_text("utf-8")
    match = re.fullmatch(
        rf"-- {name}: (?P<purpose>.+\.)\n"
        r"-- KEYS   (?P<keys>.+)\n"
        r"-- ARGV   (?P<arguments>.+)\n"
        r"-- REPLY  (?P<reply>.+(?:\n--        .+)*)\n"
        r"-- COST   (?P<cost>.+(?:\n--        .+)*)\n"
        r"(?P<notes>(?:-- (?!@).+\n)*)"
        r"(?P<includes>(?:-- @include \w+\n)*)"
        r"(?P<body>(?:.*\n)+)",
        text,
    )
    assert match, f"{name}.lua: purpose, KEYS, ARGV, REPLY, COST, notes, includes, in this order"
    keys = [key for key in match["keys"].split(", ") if not key.endswith("...")]
    arguments = [] if match["arguments"] == "(none)" else match["arguments"].split(", ")
    return Header(
        match["purpose"],
        [(found[1], found[2]) for key in keys if (found := re.fullmatch(r"(\w+) \((\w+)\)", key))],
        match["keys"].endswith("..."),
        [argument for argument in arguments if not argument.endswith("...")],
        bool(arguments) and arguments[-1].endswith("..."),
        match["reply"],
        match["cost"],
        re.findall(r"@include (\w+)", match["includes"]),
        match["body"],
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_header_has_its_form(name: str) -> None:
    head = header(name)
    assert head.keys
    assert {kind for _, kind in head.keys} <= TYPES
    assert len({key for key, _ in head.keys}) == len(head.keys)
    assert "us" in head.cost or "O(" in head.cost
    assert "@include" not in head.body


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OTHERS])
def test_the_keys_are_those_that_are_sent(name: str) -> None:
    keys = [key for key, _ in header(name).keys]
    sent = _KEYS[name].split()
    assert keys == (["lane", *sent] if script(name).recorded else sent)


def test_every_script_is_sent_and_no_other() -> None:
    assert {*_KEYS, *OTHERS} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_scripts_have_a_lane_and_a_call(name: str) -> None:
    head = header(name)
    recorded = script(name).recorded
    assert recorded == (head.keys[0] == ("lane", "string"))
    assert recorded == (head.arguments[:1] == ["call"])
    assert recorded == ("record" in head.includes)
    assert recorded == ("return answer(" in head.body)


@pytest.mark.parametrize("name", NAMES)
def test_the_body_names_what_it_gets_as_the_header_does(name: str) -> None:
    """`local lane, jobs = KEYS[1], KEYS[2]`: the same names, in the same order, and none forgotten."""
    head = header(name)
    expected = {("KEYS", i): key for i, (key, _) in enumerate(head.keys, 1)}
    expected |= {("ARGV", i): argument for i, argument in enumerate(head.arguments, 1)}
    found: dict[tuple[str, int], str] = {}
    for names, values in _BINDING.findall(head.body):
        for own, value in zip(names.split(", "), values.split(", "), strict=False):
            if match := _VALUE.fullmatch(value):
                found[match[1], int(match[2])] = ALIASES.get(own, own)
    wrong = {place: own for place, own in found.items() if own != expected.get(place, own)}
    assert wrong == {}
    unnamed = {place for place in expected if place not in found} - {("ARGV", 1)}  # `call`, which record.lua reads
    assert {place for place in unnamed if not re.search(rf"{place[0]}\[{place[1]}\]", head.body)} == set()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_included_is_there_and_used(name: str) -> None:
    head = header(name)
    assert set(head.includes) <= set(FRAGMENTS)
    assert len(set(head.includes)) == len(head.includes)
    source = script(name).source
    for fragment in head.includes:
        functions = re.findall(
            r"^local function (\w+)", (FOLDER / "lib" / f"{fragment}.lua").read_text("utf-8"), re.MULTILINE
        )
        assert functions
        assert any(len(re.findall(rf"\b{function}\(", source)) > 1 for function in functions), fragment


def test_every_fragment_is_included() -> None:
    assert {fragment for name in NAMES for fragment in header(name).includes} == set(FRAGMENTS)


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_every_fragment_says_what_it_is(fragment: str) -> None:
    assert (FOLDER / "lib" / f"{fragment}.lua").read_text("utf-8").startswith("-- ")


OPS = Ops(Keys.of("shop/orders"))
FLOW = Staged("shop", "headrace", None, ["a"], 1000, 60.0, False)
FLOW.stage("orders", next="bills")
FLOW.stage("bills")
CLAIMS = [Claim(Job(f"{i}-0", b"x", "shop/orders"), "w", f"{i}-0", 1, 1) for i in (1, 2)]
SAMPLES: dict[str, Op[object]] = {
    "beat": OPS.beat("w", 10.0),
    "cancel": OPS.cancel("i"),
    "cancel_payload": OPS.cancel_payload(b"x", "jobs", "-"),
    "complete": OPS.complete(CLAIMS),
    "counts": OPS.counts(),
    "dead_letter": OPS.dead_letter([(claim, "why") for claim in CLAIMS]),
    "delete": OPS.delete(),
    "enqueue": OPS.enqueue([b"x"]),
    "expire": OPS.expire("-", ["i"]),
    "fail_worker": OPS.fail_worker("w"),
    "find": OPS.find("i"),
    "flow_advance": FLOW.ops.advance([FLOW.ops.cancelling("i")]),
    "flow_events": FLOW.ops.events(),
    "flow_find": FLOW.ops.found("a", "b", ""),
    "flow_read": FLOW.ops.read(["i", "j"]),
    "flow_start": FLOW.ops.start(b"x", "i", None, None, None, None),
    "lease": Ops(Keys.of("shop/orders"), QueueSettings(rates=Rate(1))).lease("w", 10),
    "leave": OPS.leave("w"),
    "levels": OPS.levels(),
    "list": OPS.listing("waiting", ""),
    "listen": OPS.listen(),
    "measure": OPS.measure(),
    "move": OPS.move("shop/bills", "-", ["i"]),
    "pause": OPS.pause(True),
    "paused": OPS.paused(),
    "position": OPS.position("i"),
    "purge": OPS.purge(),
    "purge_dead": OPS.purge_dead("-", ["i"]),
    "reclaim": OPS.reclaim("w", 10.0),
    "redrive": OPS.redrive("-", ["i"]),
    "register": OPS.register("w.1", "w", 10.0),
    "release": OPS.release(CLAIMS),
    "renew": OPS.renew(CLAIMS),
    "repair": OPS.repair(),
    "result": OPS.result("i"),
    "retry": OPS.retry([(claim, None, True, "why") for claim in CLAIMS]),
    "reschedule": OPS.reschedule("i", 1.0),
    "schedule": OPS.schedule("s", Timing(every=1000), "once", NewJob(b"x"))(5),
    "schedules": OPS.schedules(),
    "tick": OPS.turn(Ticking(7, None, [("s", 5, "every 1000", "once")])).ops[0],
    "unschedule": OPS.unschedule("s"),
    "workers": OPS.workers(),
}


@pytest.mark.parametrize("name", NAMES)
def test_as_many_arguments_are_sent_as_the_header_names(name: str) -> None:
    head, op = header(name), SAMPLES[name]
    wire = op.wire("EVALSHA", "l", "1")
    keys = wire[3 : 3 + int(wire[2])]
    arguments = wire[3 + int(wire[2]) :]
    assert op.name == name
    more = 8 if name == "move" else 0  # those of the other queue
    if "flow" in name:
        assert len(keys) >= len(head.keys)
    else:
        assert len(keys) == len(head.keys) + more
    assert len(arguments) > len(head.arguments) if head.more_arguments else len(arguments) == len(head.arguments)
    if script(name).recorded:
        assert keys[0] == op.lane_prefix + "l"
        assert arguments[0] == "1"
    near = "" if "flow" in name else "/orders:"
    own = len(keys) if "flow" in name else len(head.keys)
    assert all(str(key).startswith("headrace:{shop}:shop" + near) for key in keys[:own])
    assert all(str(key).startswith("headrace:{shop}:shop/bills:") for key in keys[own:])


def test_keys_of_results_and_followers_come_after_the_others() -> None:
    """In one slot with them: eight of each queue that follows."""
    then = [NewJob(b"y"), NewJob(b"z", queue="shop/bills")]
    op = OPS.complete(CLAIMS[:1], results={"1-0": b"r"}, then=then)
    extra = [key.removeprefix("headrace:{shop}:") for key in op.keys[len(_KEYS["complete"].split()) :]]
    follow = ["jobs", "wake", "ids", "delayed", "bodies", "stats", "events", "jobs"]
    expected = ["shop/orders:result:1-0", *(f"shop/orders:{part}" for part in follow)]
    assert extra == expected + [f"shop/bills:{part}" for part in follow]
    assert header("complete").more_keys


@pytest.mark.parametrize("name", [name for name in NAMES if script(name).levelled])
def test_the_streams_of_levels_are_the_keys_behind_all_others(name: str) -> None:
    source = script(name).source
    assert re.findall(r"behind\(stats, (\d+)\)", source) == [str(len(header(name).keys) + 1)]
    assert re.search(r"^-- KEYS .*levels\.\.\.$", source, re.MULTILINE)
