"""A private primary with replicas, and Sentinels that watch it."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import redis

from tests.support.awaiting import until
from tests.support.cluster import Node
from tests.support.servers import Binary, Process, free_port, spawn


class Sentinels:
    """A primary, its replicas, and three Sentinels that watch them; a context manager."""

    service = "primary"

    def __init__(self, binary: Binary, replicas: int = 1, *, down_after_ms: int = 1_000) -> None:
        self.binary = binary
        self.nodes = [Node(binary, tcp=True, extra=["--repl-diskless-sync-delay", "0"]) for _ in range(1 + replicas)]
        self.ports: list[int] = []
        self._down_after_ms = down_after_ms
        self._processes: list[Process] = []
        self._folder = Path(tempfile.mkdtemp(prefix="hr-"))
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self._stack.enter_context(node)
            primary, *replicas = self.nodes
            for node in replicas:
                node.ask("REPLICAOF", *primary.place)
            until(lambda: primary.info("INFO", "replication")["connected_slaves"] == str(len(replicas)), "replicas")
            for _ in range(3):
                self._watch(primary)
            until(lambda: all(self._knows(port) for port in self.ports), "Sentinels that know each other")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _watch(self, primary: Node) -> None:
        port, name = free_port(), self.service
        folder = self._folder / str(port)
        folder.mkdir()
        lines = [
            f"port {port}",
            "bind 127.0.0.1",
            f"dir {folder}",
            f"sentinel monitor {name} 127.0.0.1 {primary.port} 2",
            f"sentinel down-after-milliseconds {name} {self._down_after_ms}",
            f"sentinel failover-timeout {name} 5000",
        ]
        (folder / "conf").write_text("\n".join(lines) + "\n")
        self._processes.append(spawn([self.binary.path, folder / "conf", "--sentinel"], folder / "log"))
        self.ports.append(port)

    def ask(self, port: int, *command: Any) -> Any:
        """Run a command on a Sentinel, and return its reply as it came."""
        with redis.Redis(port=port, socket_timeout=10, protocol=2) as client:
            client.response_callbacks.clear()  # pyright: ignore[reportUnknownMemberType]
            return client.execute_command(*command)

    def _knows(self, port: int) -> bool:
        with suppress(redis.RedisError):
            words = [bytes(word).decode() for word in self.ask(port, "SENTINEL", "MASTER", self.service)]
            state = dict(zip(words[::2], words[1::2], strict=True))
            return (state["num-other-sentinels"], state["num-slaves"]) == ("2", str(len(self.nodes) - 1))
        return False

    @property
    def primary(self) -> Node:
        """The primary, as a Sentinel says."""
        port = int(self.ask(self.ports[0], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)[1])
        return next(node for node in self.nodes if node.port == port)

    def failover(self) -> None:
        """Have another node made the primary; returns when a Sentinel names it."""
        former = self.primary
        self.ask(self.ports[0], "SENTINEL", "FAILOVER", self.service)
        until(lambda: self.primary is not former, "another primary")

    def client(self, module: Any) -> Any:
        """Make a client of redis-py's, of `redis` or `redis.asyncio`, for the primary."""
        watch = module.sentinel.Sentinel([("127.0.0.1", port) for port in self.ports])
        return watch.master_for(self.service)

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for node in self.nodes:
            if node.up:
                node.kill()
        self._stack.close()
        shutil.rmtree(self._folder, ignore_errors=True)
