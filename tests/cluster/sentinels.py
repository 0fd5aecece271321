"""A private primary with replicas, and Sentinels that watch it."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any, Self

import redis

from tests.support.awaiting import until
from tests.support.servers import Binary, Server


class Sentinels(ExitStack):
    """A primary with replicas and three Sentinels. They end with the `with` block."""

    service = "primary"

    def __init__(self, binary: Binary, replicas: int = 1, *, down_after_ms: int = 1_000) -> None:
        super().__init__()
        self.binary = binary
        self.nodes = [
            Server(binary, tcp=True, extra=["--repl-diskless-sync-delay", "0"])
            for _ in range(1 + replicas)
        ]
        self.sentinels: list[Server] = []
        self._down_after_ms = down_after_ms

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            starting.push(self)
            primary, *replicas = [self.enter_context(node) for node in self.nodes]
            for node in replicas:
                node.ask("REPLICAOF", *primary.place)
            until(
                lambda: (
                    primary.info("INFO", "replication")["connected_slaves"] == str(len(replicas))
                ),
                "replicas",
            )
            config = [
                f"sentinel monitor {self.service} 127.0.0.1 {primary.port} 2",
                f"sentinel down-after-milliseconds {self.service} {self._down_after_ms}",
                f"sentinel failover-timeout {self.service} 5000",
            ]
            for _ in range(3):
                self.sentinels.append(
                    self.enter_context(
                        Server(self.binary, tcp=True, config=config, extra=["--sentinel"])
                    )
                )
            until(
                lambda: all(map(self._is_ready, self.sentinels)), "Sentinels that know each other"
            )
            starting.pop_all()
        return self

    def _is_ready(self, sentinel: Server) -> bool:
        with suppress(redis.RedisError):
            words = [
                bytes(word).decode() for word in sentinel.ask("SENTINEL", "MASTER", self.service)
            ]
            state = dict(zip(words[::2], words[1::2], strict=True))
            return (state["num-other-sentinels"], state["num-slaves"]) == (
                "2",
                str(len(self.nodes) - 1),
            )
        return False

    @property
    def primary(self) -> Server:
        port = int(self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)[1])
        return next(node for node in self.nodes if node.port == port)

    def failover(self) -> None:
        """Make another node the primary. Return when a Sentinel names it."""
        former = self.primary
        self.sentinels[0].ask("SENTINEL", "FAILOVER", self.service)
        until(lambda: self.primary is not former, "another primary")

    @property
    def places(self) -> list[tuple[str, int]]:
        """The host and port of each Sentinel."""
        return [sentinel.place for sentinel in self.sentinels]

    def client(self, module: Any) -> Any:
        """Make a client of redis-py's, of `redis` or `redis.asyncio`, for the primary."""
        return module.sentinel.Sentinel(self.places).master_for(self.service)
