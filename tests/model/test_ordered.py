"""Random walks over ordered queues on every server, and the bugs that they must find.

ORDERED_WALKS=2000 ORDERED_SEED=7 pytest tests/model/test_ordered.py -k agrees -n 2 --timeout 0
"""

from __future__ import annotations

import os

import pytest
import redis

from tests.model.mutants import ORDERED
from tests.model.ordered import Walk
from tests.support.planted import plant_scripts
from tests.support.servers import Server, binaries

WALKS = int(os.environ.get("ORDERED_WALKS", "12"))
SEED = int(os.environ.get("ORDERED_SEED", "1"))
STEPS = 120


def walk(server: Server, seed: int) -> None:
    """Make one walk on an empty server."""
    with redis.Redis(unix_socket_path=server.path) as client:
        client.flushall()
    Walk(server, seed).run(STEPS)


def walks(server: Server, seeds: range) -> None:
    for seed in seeds:
        walk(server, seed)


@pytest.mark.long
def test_server_agrees(server: Server, large: bool) -> None:
    """Jobs of one key run one at a time and in order. None is lost."""
    start = SEED + 1_000_000 * binaries().index(server.binary)
    walks(server, range(start, start + (WALKS if large else WALKS // 2)))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ORDERED)
def test_planted_bug(newest: Server, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few walks find it."""
    plant_scripts(monkeypatch, ORDERED[mutant])
    with pytest.raises(AssertionError):
        walks(newest, range(1, 121))
