"""A cluster behind TLS. Each node announces a port at which TLS ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from tests.support.cluster import Cluster
from tests.support.colours import Connect
from tests.support.engines import Running
from tests.support.proxy import TLSProxy


@pytest.fixture
def tls(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """The URL of three masters that announce the ports of proxies, and a queue on each. Each has
    its authority."""
    names = cluster.groups()
    with ExitStack() as stack:
        proxies = []
        for node in cluster.nodes:
            folder = tmp_path / str(node.port)
            folder.mkdir()
            proxies.append(stack.enter_context(TLSProxy(node.path, folder, "127.0.0.1")))
            node.ask("CONFIG", "SET", "cluster-announce-port", proxies[-1].port)
        authorities = tmp_path / "ca.pem"
        authorities.write_text("".join(Path(proxy.ca_path).read_text() for proxy in proxies))
        ports = {proxy.port for proxy in proxies}
        cluster.until(
            lambda node: {port for *_, (_, port, *_) in node.ask("CLUSTER", "SLOTS")} == ports,
            "their ports",
        )
        yield f"rediss+cluster://127.0.0.1:{proxies[0].port}?ssl_ca_certs={authorities}", names
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "cluster-announce-port", 0)
        ports = {node.port for node in cluster.nodes}
        cluster.until(
            lambda node: {port for *_, (_, port, *_) in node.ask("CLUSTER", "SLOTS")} == ports,
            "their own",
        )


@pytest.mark.slow
def test_by_tls(tls: tuple[str, list[str]], colour: str, cluster: Cluster) -> None:
    """Queues and a worker use all nodes. Without the authority's certificate none is reached."""
    url, names = tls
    worker = Running("threads" if colour == "sync" else "tasks", url=url)
    with Connect(colour, cluster) as connect:
        for name in names:
            worker.handler(name)(lambda job: job.payload.upper())
        with worker:
            for name in names:
                assert connect(name, url=url).enqueue(b"x").result(timeout=60) == b"X"
        with pytest.raises(redis.ConnectionError, match="certificate"):
            connect("t", url=url.partition("?")[0], timeout=8).enqueue(b"x")
