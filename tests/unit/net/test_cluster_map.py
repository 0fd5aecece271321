"""The choice among the maps of a cluster that its nodes report."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions as errors

from headrace import ConfigurationError
from headrace._net.base.cluster import PROBE_EVERY_S, SLOTS, MapSearch, Node, Slots
from headrace._protocol.limits import SILENT_S

NODES: list[Node] = [("a", 1), ("b", 2), ("c", 3)]


def told(epoch: int | None, *names: str, served: int = SLOTS) -> list[Any]:
    """Return the answers of a node that says these nodes serve so many slots in equal ranges."""
    rows = [
        [
            at * served // len(names),
            (at + 1) * served // len(names) - 1,
            [name.encode(), 1, f"id-{name}".encode()],
        ]
        for at, name in enumerate(names)
    ]
    info: Any = (
        errors.NoPermissionError("NOPERM")
        if epoch is None
        else b"cluster_current_epoch:%d\r\n" % epoch
    )
    return [rows, info]


RIGHT = told(7, "a", "b", "c")


@pytest.fixture
def slots() -> Slots:
    found = Slots(NODES)
    assert MapSearch(found).take(NODES[0], RIGHT)
    return found


def owners(slots: Slots) -> list[str]:
    """Return the hosts of the nodes that serve slots."""
    return [host for host, _ in slots.primaries()]


@pytest.mark.parametrize(
    "answers",
    [
        [[], b"cluster_current_epoch:0"],
        [[], b"cluster_current_epoch:7"],
        told(6, "a", "b"),
        told(9, "x", "y", "z"),
        told(7, "a", "b", served=9000),
        told(None, "a", served=9000),
        ConfigurationError("no node of a cluster"),
        [
            errors.ResponseError("ERR This instance has cluster support disabled"),
            errors.ResponseError("ERR"),
        ],
    ],
    ids=[
        "reset",
        "taken out",
        "earlier",
        "of another cluster",
        "partial",
        "partial, no epoch",
        "alone",
        "one server",
    ],
)
def test_a_node_that_is_no_member_is_passed_over(slots: Slots, answers: Any) -> None:
    look = MapSearch(slots)
    assert not look.take(NODES[1], answers)
    assert owners(slots) == ["a", "b", "c"]
    assert look.take(NODES[2], told(8, "a", "c"))
    assert look.error is None
    assert owners(slots) == ["a", "c"]


@pytest.mark.parametrize("answers", [told(7, "a", "c"), told(8, "a", "x"), told(None, "b", "c")])
def test_a_later_map_is_taken(slots: Slots, answers: Any) -> None:
    assert MapSearch(slots).take(NODES[1], answers)
    assert owners(slots) != ["a", "b", "c"]


@pytest.mark.parametrize(("silent", "taken"), [(False, True), (True, False)])
def test_a_cluster_that_was_made_anew(slots: Slots, silent: bool, taken: bool) -> None:
    """All nodes agree on a map with an earlier version. It is not taken while a silent node may
    know a newer one."""
    look = MapSearch(slots)
    assert not look.take(NODES[0], told(1, "x", "y"))
    look.take(
        NODES[1], errors.TimeoutError("silent") if silent else errors.ConnectionError("refused")
    )
    look.end()
    assert (owners(slots) == ["x", "y"]) == taken
    assert (look.error is None) == taken


def test_an_empty_map_never_replaces_one(slots: Slots) -> None:
    look = MapSearch(slots)
    for node in NODES:
        assert not look.take(node, [[], b"cluster_current_epoch:9"])
    look.end()
    assert isinstance(look.error, errors.ClusterDownError)
    assert owners(slots) == ["a", "b", "c"]


def test_an_empty_map_is_not_taken_for_the_first_one() -> None:
    slots = Slots(NODES)
    look = MapSearch(slots)
    assert not look.take(NODES[0], [[], b"cluster_current_epoch:0"])
    assert not slots.complete
    assert look.take(NODES[1], RIGHT)


def test_a_node_is_silent_until_it_answers_or_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    slots = Slots(NODES)
    MapSearch(slots).take(NODES[0], RIGHT)
    assert slots.silent(0) is None
    slots.failed(NODES[0], errors.TimeoutError("late"))
    assert (slots.silent(0), slots.silent(SLOTS - 1)) == (NODES[0], None)
    assert slots.places()[-1] == NODES[0]
    assert [slots.may_probe(NODES[0]) for _ in range(2)] == [True, False]  # one caller
    now += PROBE_EVERY_S
    assert slots.may_probe(NODES[0])
    slots.answered(NODES[0])
    assert slots.silent(0) is None
    slots.failed(NODES[0], errors.TimeoutError("late"))
    now += SILENT_S
    assert slots.silent(0) is None


def test_a_cut_connection_is_no_silence(slots: Slots) -> None:
    """The server may have closed the first connection. Only the second failure in a row counts as
    silence."""
    slots.failed(NODES[0], errors.ConnectionError("closed"))
    assert slots.silent(0) is None
    slots.answered(NODES[0])
    for silent in (None, NODES[0]):
        slots.failed(NODES[0], errors.ConnectionError("closed"))
        assert slots.silent(0) == silent


def test_what_is_no_cluster_is_said_where_there_is_nothing_else() -> None:
    disabled = [errors.ResponseError("ERR This instance has cluster support disabled")] * 2
    look = MapSearch(Slots(NODES))
    look.take(NODES[0], disabled)
    look.end()
    assert isinstance(look.error, ConfigurationError)
    look.take(NODES[1], errors.TimeoutError("silent"))
    assert isinstance(look.error, errors.TimeoutError)  # which may heal
