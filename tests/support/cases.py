"""The cases of a test that run: of those that its servers, colours, protocols and other parameters make.

Both colours send the same bytes, and what differs between servers is what scripts meet there. So a body runs on every
server that is asked for, and in both colours, but not in each on each: asyncio has one server, which threads leave to
it (the newest, if that is all there is), RESP3 the newest and the oldest, and a cluster of one node one colour.

Of its other parameters all run on the newest server, from threads; each other server has of a sixth, another one each,
two cases at most, and one case at least.

On three masters, which have a run of their own, each body has one case: with shards, if it holds there
(`differences.py`), else without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest
from attrs import evolve

from tests.support.differences import difference
from tests.support.servers import Binary, binaries

# It serves all slots: a script with keys in two fails there.
CLUSTER = evolve(binaries()[0], name="cluster", masters=1)
MASTERS = evolve(CLUSTER, name="cluster-3", masters=3)
SHARDED = evolve(MASTERS, name="cluster-3x6", shards=6)
CLUSTERS = [CLUSTER, MASTERS, SHARDED]
ON_CLUSTERS, ON_MASTERS = {"conformance", "flows"}, {"conformance"}  # folders of tests
# Transactions with keys of their own; the model of flows, whose scripts are those of any server.
OFF_CLUSTERS = {"test_enqueue_in_a_transaction", "test_by_hash", "test_what_holds"}

ONCE = "masters"  # each body once on three masters
ALL, NONE = range(6), ()  # sixths
MOST = 2  # cases of a sixth that run


def chosen(cases: Sequence[Any], body: pytest.Item, servers: str, *, full: bool) -> list[Any]:
    """Choose the cases that run. *servers* and *full* are the options of tests/conftest.py."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for case in cases:
        binary = next((value for value in case.params.values() if isinstance(value, Binary)), None)
        groups.setdefault((binary, case.params.get("colour"), case.params.get("protocol")), []).append(case)
    named = followers(body)
    runs: set[int] = set()
    for (binary, colour, protocol), group in groups.items():
        wanted = sixths(binary, colour, protocol, body, servers, full=full)
        found = [case for case in group if number(case, named) % len(ALL) in wanted]
        if len(wanted) == 1:
            found = found[:: -(-len(found) // MOST)] if found else group[:1]
        runs.update(map(id, found))
    if servers == ONCE and not ON_MASTERS.isdisjoint(body.path.parts):
        runs.update(map(id, once_on_masters(cases, body)))
    return [case for case in cases if id(case) in runs]


def once_on_masters(cases: Sequence[Any], body: pytest.Item) -> Sequence[Any]:
    """Choose one case on three masters: with shards, if the body holds there, else without. The colours take turns."""
    turn = ("sync", "async")[crc32(body.name.encode()) % 2]
    for binary in (SHARDED, MASTERS):
        some = [case for case in cases if binary in case.params.values()]
        some = [case for case in some if difference(binary, body, case.id) is None]
        if some and body.name not in OFF_CLUSTERS:
            return [case for case in some if case.params.get("colour") == turn][:1] or some[:1]
    return []


def sixths(
    binary: Binary | None, colour: str | None, protocol: int | None, body: pytest.Item, servers: str, *, full: bool
) -> Sequence[int]:
    """Say which sixths of a body's cases run on a server, in a colour, by a protocol."""
    if binary is None:
        return NONE if servers in {ONCE, *(one.name for one in CLUSTERS)} else ALL
    if binary.masters:
        return sixths_of_cluster(binary, colour, body, servers, full=full)
    place, last = binaries().index(binary), len(binaries()) - 1
    if not {"newest": place == 0, "ends": place in {0, last}, "all": True}.get(servers, False):
        return NONE
    if full or (place == 0 and colour != "async"):
        return ALL
    apart = servers == "all" and last > 1  # asyncio has the second server for itself
    others = colour is not None and (colour == "async") != (place == apart)
    return NONE if others or (protocol == 3 and place not in {0, last}) else (2 * place % len(ALL),)


def sixths_of_cluster(
    binary: Binary, colour: str | None, body: pytest.Item, servers: str, *, full: bool
) -> Sequence[int]:
    """Say which sixths of a body's cases run on a cluster; the one case on three masters is chosen besides."""
    folders = ON_CLUSTERS if binary.masters == 1 else ON_MASTERS
    if body.name in OFF_CLUSTERS or folders.isdisjoint(body.path.parts) or servers not in {binary.name, "all"}:
        return NONE
    if full or servers == binary.name:
        return ALL
    return NONE if binary.masters > 1 or colour == "async" else (0,)


def number(case: Any, named: set[str]) -> int:
    """Count a case among those of its body, whatever the server and the colour: by it, sixths are cut."""
    params, ways = case.params, {"colour", "protocol"} | named
    return sum(i for name, i in case.indices.items() if name not in ways and not isinstance(params[name], Binary))


def followers(body: pytest.Item) -> set[str]:
    """Find the parameters that a mark gives together with the one before: their numbers are that one's."""
    found: set[str] = set()
    for mark in body.iter_markers("parametrize"):
        names = mark.args[0]
        listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        found.update(listed[1:])
    return found
