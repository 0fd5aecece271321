"""Faults of a storm's server besides its death. Each function begins one, and returns a function
that ends it if it lasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import redis

from tests.chaos.actors import TIMEOUT
from tests.support.awaiting import until
from tests.support.servers import EXACT, Server

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

End = Callable[[], object]
LASTS = 1.5  # seconds that a fault lasts at most, if it does
# a primary waits for more replicas, by default five seconds
QUICK = ["--repl-diskless-sync-delay", "0"]


def full(storm: Storm) -> End:
    """Fill the memory, so that writes that need some are refused."""
    used = int(storm.client.info("memory")["used_memory"])
    storm.client.config_set("maxmemory", max(1, used // 2))
    return lambda: storm.client.config_set("maxmemory", 0)


def crowded(storm: Storm) -> End:
    """Refuse new connections."""
    clients = int(storm.client.info("clients")["connected_clients"])
    storm.client.config_set("maxclients", max(2, clients - 2))
    return lambda: storm.client.config_set("maxclients", 10_000)


def forgetful(storm: Storm) -> None:
    """Forget all scripts, as in a failover."""
    storm.client.script_flush()


def killed(storm: Storm) -> None:
    """Cut all connections, including listeners."""
    for kind in ("normal", "pubsub"):
        storm.client.client_kill_filter(_type=kind, skipme=True)


def paused(storm: Storm) -> None:
    """Serve no client for a while."""
    storm.client.execute_command("CLIENT", "PAUSE", int(1000 * LASTS * storm.dice.random()), "ALL")


def frozen(storm: Storm) -> None:
    """Freeze the server with its connections open, for longer than workers may be silent."""
    storm.server.suspend()
    try:
        time.sleep(TIMEOUT * (0.5 + storm.dice.random()))
    finally:
        storm.server.wake()


def jumped(storm: Storm) -> None:
    """Move the server's clock back, or forward by more than it went back, so that its times come
    soon."""
    behind = storm.clock.ahead < storm.clock.furthest
    far = storm.dice.choice([2.0, 5.0, 30.0])
    back = not behind and storm.dice.random() < 0.5
    storm.did["back"] += back
    storm.clock.jump(-far if back else storm.clock.furthest - storm.clock.ahead + far)


def promoted(storm: Storm) -> None:
    """Let a replica take over properly. It has all acknowledged writes, and the former primary is
    gone."""
    former = storm.server
    heir = storm.serve(Server(storm.binary, appendonly=True, tcp=True, extra=[*EXACT, *QUICK]))
    with redis.Redis(unix_socket_path=heir.path) as replica:
        replica.replicaof("127.0.0.1", former.port)
        until(
            lambda: replica.info("replication")["master_link_status"] == "up",
            "the replica to be in step",
        )
        until(
            lambda: _kept(replica),
            "the replica's own file: until it is written, that of before is what it has",
        )
        storm.client.execute_command("CLIENT", "PAUSE", 20_000, "WRITE")
        until(
            lambda: (
                _offset(replica, "slave_repl_offset") >= _offset(storm.client, "master_repl_offset")
            ),
            "the last",
        )
        replica.replicaof("NO", "ONE")
    storm.lead(heir)
    former.kill()


def _kept(client: redis.Redis) -> bool:
    said = client.info("persistence")
    return not (said["aof_rewrite_in_progress"] or said["aof_rewrite_scheduled"])


def _offset(client: redis.Redis, name: str) -> int:
    return int(client.info("replication")[name])


FAULTS: dict[str, Callable[[Storm], End | None]] = {
    "full": full,
    "crowded": crowded,
    "forgetful": forgetful,
    "killed": killed,
    "paused": paused,
    "frozen": frozen,
}
