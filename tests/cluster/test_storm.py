"""The storms on a cluster.

    CHAOS_SEED=7 CHAOS_SECONDS=600 pytest tests/cluster/test_storm.py -n 0 -s

prolongs them, and has them on every server of the matrix; else each is on one, the second as the
seed decides.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.chaos.test_chaos import SEED
from tests.cluster.faults import STEADY
from tests.cluster.mutants import DURABLE_STORM, STORM
from tests.cluster.storm import Storm
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.planted import plant
from tests.support.servers import Binary, binaries

pytestmark = pytest.mark.ci

SECONDS = float(os.environ.get("CHAOS_SECONDS", "0"))
NEWEST, *OTHERS = binaries()
ONE, ANOTHER = (
    (binaries(), binaries())
    if SECONDS
    else ([NEWEST], [OTHERS[SEED % len(OTHERS)] if OTHERS else NEWEST])
)
HOW: dict[str, Any] = {} if SECONDS else {"pause": 0.15, "parts": 10}
MINUTE_S = 60.0
long = pytest.mark.skipif(not SECONDS, reason="a minute each: CHAOS_SECONDS=60")


@pytest.mark.slow
@pytest.mark.parametrize("binary", ONE, ids=lambda binary: binary.name)
def test_storm(binary: Binary) -> None:
    """Masters, slots, connections and shards change. No job is lost, runs twice or out of order,
    and all work goes on.
    """
    with Cluster(binary, replicas=1, extra=STEADY) as cluster:
        with Storm(cluster, SEED, **HOW) as storm:
            storm.blow(SECONDS)
        story = storm.story()
    print(story)
    assert not storm.complaints, story


@pytest.mark.slow
@pytest.mark.parametrize("binary", ANOTHER, ids=lambda binary: binary.name)
def test_masters_that_die_with_what_they_acknowledged(binary: Binary) -> None:
    """Jobs that durable calls acknowledged are done."""
    with Cluster(binary, replicas=1) as cluster:
        with Storm(cluster, SEED, exact=False, durable="replicas:1", **HOW) as storm:
            storm.blow(SECONDS)
        story = storm.story()
    print(story)
    assert not storm.complaints, story


@pytest.mark.slow
@long
def test_what_is_not_durable_is_lost() -> None:
    """Without `durable=` the judge misses acknowledged jobs."""
    with Cluster(NEWEST, replicas=1) as cluster:
        with Storm(cluster, SEED, exact=False) as storm:
            storm.blow(MINUTE_S)
        story = storm.story()
    print(story)
    assert list(storm.complaints) == ["lost"], story


@pytest.mark.slow
@long
@pytest.mark.parametrize("mutant", STORM)
def test_planted_bug(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storm finds the bug and names the fault."""
    bug = STORM[mutant]
    plant(monkeypatch, bug.module, bug.old, bug.new)
    # seconds to wait for a condition that never holds
    monkeypatch.setattr(until, "__defaults__", ("", 10.0))
    with Cluster(NEWEST, replicas=1, extra=STEADY) as cluster:
        with Storm(cluster, SEED) as storm:
            storm.blow(MINUTE_S, until_heard=bug.found_by)
        story = storm.story()
    print(story)
    assert storm.complaints.get(bug.found_by), story


@pytest.mark.slow
@long
@pytest.mark.parametrize("mutant", DURABLE_STORM)
def test_planted_bug_of_durable_calls(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters lose acknowledged writes. The storm finds the bug and names the fault."""
    bug = DURABLE_STORM[mutant]
    plant(monkeypatch, bug.module, bug.old, bug.new)
    # a master comes back within a few seconds
    monkeypatch.setattr("headrace._protocol.durability.WAIT_MS", 8_000)
    with Cluster(NEWEST, replicas=1) as cluster:
        with Storm(cluster, SEED, exact=False, durable="replicas:1") as storm:
            storm.blow(MINUTE_S)
        story = storm.story()
    print(story)
    assert storm.complaints.get(bug.found_by), story
