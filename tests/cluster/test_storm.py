"""The storm on a cluster.

    CHAOS_SEED=7 CHAOS_SECONDS=600 pytest tests/cluster/test_storm.py -n 0 -s

prolongs it, and has it on every server of the matrix.
"""

from __future__ import annotations

import os

import pytest

from tests.chaos.test_chaos import SEED
from tests.cluster.storm import Storm
from tests.support.cluster import Cluster
from tests.support.servers import Binary, binaries

SECONDS = float(os.environ.get("CHAOS_SECONDS", "0"))


@pytest.mark.slow
@pytest.mark.parametrize("binary", binaries() if SECONDS else binaries()[:1], ids=lambda binary: binary.name)
def test_storm(binary: Binary) -> None:
    """Whatever happens to its masters, slots and connections: nothing is lost, or done twice, and all goes on."""
    with Cluster(binary, replicas=1) as cluster:
        with Storm(cluster, SEED) as storm:
            storm.blow(SECONDS)
        story = storm.story()
    print(story)
    assert not storm.complaints, story
