"""The choice of a test's cases. It covers servers, colours and protocols.

Sync verbs are generated from the async ones, and servers differ only in how they run scripts. So by
default each body runs on the newest server in one colour, and in both where their code is written
by hand. The oldest server runs the bodies of `scripts`. The ring `others` has the rest. The option
`--full` runs all cases.

A body that does not hold on three masters says so: `@pytest.mark.differs(reason)`, or
`differs(reason, part, ...)` for its cases whose ids have one of these parts. The closest mark
decides, and `None` means that the body holds. Such cases do not run by default. With `--full`, and
on `cluster-3` and `cluster-3x6`, they run and have to fail: this finds the mark of a body that
holds by now.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

import pytest
from attrs import evolve, frozen

from headrace import ConfigurationError
from tests.support.servers import Binary, binaries

NEWEST = binaries()[0]
# A cluster of one node serves all slots: a script with keys in two slots fails there.
CLUSTER = evolve(NEWEST, name="cluster", masters=1)
MASTERS = evolve(CLUSTER, name="cluster-3", masters=3)
SHARDED = evolve(MASTERS, name="cluster-3x6", shards=6)
CLUSTERS = [CLUSTER, MASTERS, SHARDED]
ON_CLUSTER, ON_MASTERS = {"conformance", "fair", "flows"}, {"conformance"}  # folders of tests
# Transactions with keys of their own; the model of flows, whose scripts are the same on any server.
OFF_CLUSTERS = {
    "test_enqueue_in_a_transaction", "test_by_hash", "test_what_holds", "test_purge_and_move_take_them_all",
}  # fmt: skip
# Folders of the pages, SQL, Django, agents and JavaScript: they run only where they are named, as
# by `poe guests`.
GUESTS = ("web", "top", "sql", "django", "agents", "interop")
ON_OLDEST = {"scripts"}  # folders whose bodies run on the oldest server by default
# folders where the code of the colours differs by hand
IN_BOTH_COLOURS = {"workers", "faults", "cluster"}
COLOURS = ("sync", "async", "threads", "tasks", "plain")  # and the kinds of workers
# Where a body runs in both colours; bodies without a choice of servers run in the ring of the
# newest server.
BY_COLOUR: Sequence[Binary | None] = [None, NEWEST]
# the rings in which marked bodies run a sample
SAMPLED = {"quick": BY_COLOUR, "ends": [*BY_COLOUR, binaries()[-1]]}
RINGS: Mapping[str, Sequence[Binary | None]] = {
    **SAMPLED,
    "newest": BY_COLOUR,
    # on the newest and the oldest: cases that others leave out
    "others": [*BY_COLOUR, *binaries()[1:], CLUSTER],
    "all": [*BY_COLOUR, *binaries()[1:], CLUSTER],
    "masters": [MASTERS, SHARDED],
    **{binary.name: [binary] for binary in [*binaries(), *CLUSTERS]},
}


@frozen
class Difference:
    """Reason why a body does not hold on three masters."""

    why: str
    sharded: bool = True
    """Whether it applies to sharded queues only."""
    refused: str = ""
    """The words of the `ConfigurationError`, if it is one."""
    always: bool = True
    """Whether a case is sure to fail: where calls begin with any shard, some pass now and then."""

    @property
    def raises(self) -> Any:
        """Return the error with which a case has to fail, or `None` for any."""
        return pytest.RaisesExc(ConfigurationError, match=self.refused) if self.refused else None


DIFFERENCES = {  # the reasons that a body may name
    "one server": Difference(
        "the test is about the connection to one server: its socket, databases, a proxy, a client of one node",
        sharded=False,
    ),
    "max_waiting": Difference(
        "each shard has its share, so there is room in one where another is full: test_shards_full.py has what holds"
    ),
    "rate": Difference(
        "a limit is kept in one shard",
        refused=r"rate: a script reaches one of 6 shards.* give Rate\(.*per_shard=True",
    ),
    "enqueue_many": Difference(
        "conditions are checked in one script with the jobs, and these go to several",
        refused=r"conditions .* of jobs of a sharded queue: only with enqueue, one job at a time",
    ),
    "ops": Difference(
        "an operation is one script, and that reaches one shard",
        refused=r"has 6 shards, and \w+ reaches one: it is not for whole sharded queues; Queue",
    ),
    "position": Difference(
        "there is no order between shards", refused=r"no order between shards; give key="
    ),
    "order": Difference(
        "jobs without a key are first in, first out in each shard, and so are levels and dead letters",
        always=False,
    ),
    "levels": Difference(
        "a shard knows of the levels of jobs that it had, and refuses only then", always=False
    ),
    "elsewhere": Difference(
        "another thread sends an operation of the whole queue, which is refused there, and its job never ends"
    ),
    "parts": Difference(
        "a shard has its own registrations, call records, connections, limits, instant, and pages"
    ),
    "blocked": Difference("a call that waits asks the shards again and again, and does not block"),
    "ends": Difference(
        "without a history, a waiter is told of a job that was removed as of one without a result"
    ),
    "ids": Difference("an id like those of jobs without one is refused, as it names a shard"),
    "keys": Difference(
        "the test looks at the keys of the queue, or writes to them, and those of its shards have other names"
    ),
}


def difference(item: Any) -> Difference | None:
    """Return why a case does not hold on its server, or `None` if it does."""
    binary = binary_of(item)
    if binary is None or binary.masters < 2:
        return None
    for mark in item.iter_markers("differs"):
        reason, *parts = mark.args
        if not parts or any(
            re.search(rf"(^|-){re.escape(part)}(-|$)", item.callspec.id) for part in parts
        ):
            found = DIFFERENCES[reason] if reason else None
            return found if found is None or binary.shards > 1 or not found.sharded else None
    return None


def binary_of(item: Any) -> Binary | None:
    """Return the server of a case, or `None` if the test has no choice of servers."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return next((value for value in params.values() if isinstance(value, Binary)), None)


def runs_on(item: pytest.Item, binary: Binary | None) -> bool:
    """Tell whether a body can run on a cluster if *binary* is one."""
    if binary is None or not binary.masters:
        return True
    folders = ON_CLUSTER if binary.masters == 1 else ON_MASTERS
    return bool(folders & set(item.path.parts)) and item.originalname not in OFF_CLUSTERS


def chosen(items: Sequence[Any], ring: str, *, full: bool) -> Iterator[Any]:
    """Yield the cases that run in a ring."""
    bodies: dict[Any, dict[Binary | None, list[Any]]] = {}
    for item in items:
        binary = binary_of(item)
        if binary in RINGS[ring] and runs_on(item, binary):
            bodies.setdefault(item.function, {}).setdefault(binary, []).append(item)
    for by_server in bodies.values():
        if ring == "masters" and not full:
            yield from once_on_masters(by_server)
            continue
        for binary, cases in by_server.items():
            default = by_default(binary, cases) if ring in SAMPLED or ring == "others" else cases
            if full or (binary in CLUSTERS and ring == binary.name):
                yield from cases
            elif binary not in BY_COLOUR:
                candidates = in_one_colour(
                    default if ring in SAMPLED else left_out_of_ends(binary, cases)
                )
                yield from [by_name(candidates, f"{binary.name} ")] if candidates else []
            elif ring == "others":
                yield from (item for item in cases if item not in default)
            else:
                yield from default


def left_out_of_ends(binary: Binary | None, cases: Sequence[Any]) -> Sequence[Any]:
    """Return the cases of a body on a server that do not run by default. If no case runs on that
    server, return all."""
    if binary not in RINGS["ends"] or not in_folder(cases[0], ON_OLDEST):
        return cases
    return [item for item in cases if left_to_ci(item)]


def left_to_ci(item: Any) -> bool:
    """Tell whether a body never runs by default, because it takes seconds or needs a quiet
    machine."""
    return any(item.get_closest_marker(name) is not None for name in ("ci", "slow"))


def in_folder(item: Any, folders: Collection[str]) -> bool:
    """Tell whether a body is in one of these folders of tests."""
    return not set(folders).isdisjoint(item.path.parts)


def by_default(binary: Binary | None, cases: Sequence[Any]) -> Sequence[Any]:
    """Choose the cases of a body on a server that run by default.

    Of a body that is marked `sampled` this is one case, and with `sampled("kind")` one for each
    value of that parameter; none, if it is marked `ci` or `slow`. Other bodies run no case twice on
    the newest server. On the oldest server, the bodies of `scripts` run.
    """
    if binary not in BY_COLOUR and not in_folder(cases[0], ON_OLDEST):
        return []
    groups: dict[Any, list[Any]] = {}
    for item in cases:
        if not left_to_ci(item):
            mark = item.get_closest_marker("sampled")
            group = mark and tuple(str(item.callspec.params[name]) for name in mark.args)
            groups.setdefault(group, []).append(item)
    plain = groups.pop(None, [])
    if (
        plain
        and binary_of(plain[0]) in BY_COLOUR
        and all(hasattr(item, "callspec") for item in plain)
    ):
        plain = by_turns(plain, both=in_folder(plain[0], IN_BOTH_COLOURS))
    return [*plain, *map(by_name, groups.values())]


def by_turns(cases: Sequence[Any], *, both: bool) -> list[Any]:
    """Return each case in one colour, by turns. With *both*, each colour has at least one case.

    Under asyncio a handler is then a coroutine or a plain function, as the name of the body
    chooses.
    """
    if both and {"tasks", "plain"} <= {colour_of(item) for item in cases}:
        left_out = ("tasks", "plain")[crc32(cases[0].originalname.encode()) % 2]
        cases = [item for item in cases if colour_of(item) != left_out]
    in_colour: dict[str, list[Any]] = {}
    with_values: dict[Any, list[Any]] = {}
    for item in cases:
        in_colour.setdefault(colour_of(item), []).append(item)
        with_values.setdefault(other_values(item), []).append(item)
    first = crc32(f"first {cases[0].originalname}".encode())
    kept = [
        found[(first + number) % len(found)] for number, found in enumerate(with_values.values())
    ]
    missing = [
        by_name(found) for found in in_colour.values() if not any(item in kept for item in found)
    ]
    return [*kept, *missing] if both else kept


def colour_of(item: Any) -> str:
    """Return the colour of a case or its kind of worker, or an empty text if it has none."""
    return str(item.callspec.params.get(colour_parameter(item), ""))


def colour_parameter(item: Any) -> str:
    """Return the name of the parameter that is the colour of a case, or an empty text without
    one. The protocols of `scripts` take turns as colours do."""
    params = item.callspec.params
    values = ((name, params.get(name)) for name in ("colour", "kind", *params))
    return next((name for name, value in values if name == "protocol" or value in COLOURS), "")


def other_values(item: Any) -> tuple[tuple[str, int], ...]:
    """Return the identities of a case's values, which are its key among the cases of the same
    colour."""
    colour = colour_parameter(item)
    return tuple(
        (name, id(value)) for name, value in item.callspec.params.items() if name != colour
    )


def by_name(cases: Sequence[Any], salt: str = "") -> Any:
    """Choose one case of a body. The choice is stable, and it is not the first of each body."""
    return cases[crc32(f"{salt}{cases[0].originalname}".encode()) % len(cases)]


def in_one_colour(cases: Sequence[Any]) -> list[Any]:
    """Return the cases in one colour, which the name of their body chooses. Without a colour,
    return all."""
    colour = ("sync", "async")[crc32(cases[0].originalname.encode()) % 2] if cases else ""
    return [item for item in cases if item.callspec.params.get("colour") == colour] or [*cases]


def once_on_masters(by_server: Mapping[Binary | None, Sequence[Any]]) -> Sequence[Any]:
    """Choose one case on three masters, with shards if the body holds there."""
    for binary in (SHARDED, MASTERS):
        if found := [item for item in by_server.get(binary, ()) if difference(item) is None]:
            return in_one_colour(found)[:1]
    return []
