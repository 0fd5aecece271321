"""Passwords that rotate on a cluster and behind Sentinel during work. No job is lost or runs
twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.cluster import ClusterNode
from redis.credentials import CredentialProvider

from tests.cluster.load import Load
from tests.cluster.sentinels import Sentinels
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.servers import Server, binaries

pytestmark = pytest.mark.ci

USER = "app"
ROTATIONS = 3


class Late(CredentialProvider):
    """A provider that knows a new secret only when it is told."""

    def __init__(self) -> None:
        self.secret, self.asked = "first", 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        return USER, self.secret


def rotate(nodes: Sequence[Server], secret: str) -> None:
    """Change the secret on all nodes, and end the connections with the former one."""
    for node in nodes:
        node.ask("ACL", "SETUSER", USER, "on", "resetpass", f">{secret}", "~*", "&*", "+@all")
        node.ask("CLIENT", "KILL", "USER", USER)


@contextmanager
def on_a_cluster(
    provider: Late,
) -> Iterator[tuple[Sequence[Server], Callable[[Any], Any], list[str]]]:
    with Cluster(binaries()[0]) as cluster:
        rotate(cluster.nodes, provider.secret)

        def client(module: Any) -> Any:
            there: Any = ClusterNode if module is redis else module.cluster.ClusterNode
            nodes = [there(*node.place) for node in cluster.nodes]
            made = module.RedisCluster if module is redis else module.cluster.RedisCluster
            return made(startup_nodes=nodes, credential_provider=provider)

        yield cluster.nodes, client, cluster.groups()


@contextmanager
def behind_sentinel(
    provider: Late,
) -> Iterator[tuple[Sequence[Server], Callable[[Any], Any], list[str]]]:
    with Sentinels(binaries()[0]) as sentinels:
        rotate(sentinels.nodes, provider.secret)

        def client(module: Any) -> Any:
            watch = module.sentinel.Sentinel(sentinels.places)
            return watch.master_for(sentinels.service, credential_provider=provider)

        yield sentinels.nodes, client, ["q"]


@pytest.mark.sampled("kind")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "tasks"])
@pytest.mark.parametrize("place", [on_a_cluster, behind_sentinel], ids=lambda place: place.__name__)
def test_work_goes_on_while_secrets_rotate(place: Any, kind: str) -> None:
    provider = Late()
    with place(provider) as (nodes, client, names), Load(client, names, kind) as load:
        load.goes_on(20)
        for number in range(ROTATIONS):
            rotate(nodes, f"secret {number}")
            asked = provider.asked
            until(lambda asked=asked: provider.asked >= asked + 5, "tries with the old secret")
            provider.secret = f"secret {number}"
            load.goes_on(20)
