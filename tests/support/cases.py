"""The choice of the cases of a test that run: servers, colours and protocols.

Both colours send the same bytes, and servers differ by what scripts meet there. So the newest server runs every case in
both colours; each other server runs one case of each body, in one colour. The option `--full` runs all cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import pytest
from attrs import evolve

from tests.support.differences import difference
from tests.support.servers import Binary, binaries

# A cluster of one node serves all slots: a script with keys in two slots fails there.
CLUSTER = evolve(binaries()[0], name="cluster", masters=1)
MASTERS = evolve(CLUSTER, name="cluster-3", masters=3)
SHARDED = evolve(MASTERS, name="cluster-3x6", shards=6)
CLUSTERS = [CLUSTER, MASTERS, SHARDED]
ON_CLUSTER, ON_MASTERS = {"conformance", "flows"}, {"conformance"}  # folders of tests
# Transactions with keys of their own; the model of flows, whose scripts are the same on any server.
OFF_CLUSTERS = {"test_enqueue_in_a_transaction", "test_by_hash", "test_what_holds"}
RINGS = {
    "newest": binaries()[:1],
    "ends": [binaries()[0], binaries()[-1]],
    "others": [*binaries()[1:-1], CLUSTER],
    "all": [*binaries(), CLUSTER],
    "masters": [MASTERS, SHARDED],
    **{binary.name: [binary] for binary in [*binaries(), *CLUSTERS]},
}


def binary_of(item: Any) -> Binary | None:
    """Return the server of a case; `None` if it has no choice of servers."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return next((value for value in params.values() if isinstance(value, Binary)), None)


def runs_on(item: pytest.Item, binary: Binary) -> bool:
    """Tell whether a body can run on a cluster, if *binary* is one."""
    folders = ON_CLUSTER if binary.masters == 1 else ON_MASTERS
    return not binary.masters or (bool(folders & set(item.path.parts)) and item.originalname not in OFF_CLUSTERS)


def chosen(items: Sequence[Any], ring: str, *, full: bool) -> Iterator[Any]:
    """Yield the cases that run in a ring."""
    bodies: dict[Any, list[Any]] = {}
    for item in items:
        binary = binary_of(item)
        if binary is None:
            if ring in {"newest", "ends", "all"}:
                yield item
        elif binary in RINGS[ring] and runs_on(item, binary):
            bodies.setdefault(item.function, []).append(item)
    for cases in bodies.values():
        if ring == "masters" and not full:
            yield from once_on_masters(cases)
        elif full or ring in {"newest", *(binary.name for binary in CLUSTERS)}:
            yield from cases
        else:
            yield from one_on_others(cases)


def one_on_others(cases: Sequence[Any]) -> Iterator[Any]:
    """Yield all cases on the newest server, and one on each other server, in the colour of threads."""
    others: dict[Binary, list[Any]] = {}
    for item in cases:
        binary = binary_of(item)
        if binary == binaries()[0]:
            yield item
        elif binary is not None and item.callspec.params.get("colour") != "async":
            others.setdefault(binary, []).append(item)
    for binary, found in others.items():
        yield found[crc32(f"{binary.name} {found[0].originalname}".encode()) % len(found)]


def once_on_masters(cases: Sequence[Any]) -> Sequence[Any]:
    """Choose one case on three masters: with shards if the body holds there, else without. The colours take turns."""
    colour = ("sync", "async")[crc32(cases[0].originalname.encode()) % 2]
    for binary in (SHARDED, MASTERS):
        found = [item for item in cases if binary_of(item) == binary and differs(item) is None]
        if found:
            return [item for item in found if item.callspec.params.get("colour") == colour][:1] or found[:1]
    return []


def differs(item: Any) -> Any:
    """Return why a case does not hold on its server; `None` if it does."""
    binary = binary_of(item)
    return None if binary is None else difference(binary, item, item.callspec.id)
