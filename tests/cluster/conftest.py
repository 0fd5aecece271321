"""Clusters of several nodes. A test process shares one of three masters, and tests that kill nodes
have their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.servers import binaries


@pytest.fixture(scope="session")
def masters() -> Iterator[Cluster]:
    """Start three masters of the newest server without replicas. They serve their slots even if
    another is gone."""
    with Cluster(binaries()[0], extra=["--cluster-require-full-coverage", "no"]) as cluster:
        yield cluster


@pytest.fixture
def cluster(masters: Cluster) -> Cluster:
    """Return three empty masters that have counted no command yet."""
    for node in masters.nodes:
        node.ask("FLUSHALL")
        node.ask("CONFIG", "RESETSTAT")
    return masters


@pytest.fixture
def server(cluster: Cluster) -> Cluster:
    """Have `connect` make its queues on three masters."""
    return cluster
