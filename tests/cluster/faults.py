"""Faults of a cluster. A *place* is a hash tag, and the fault hits its slot or the master that
serves it.

`EXACT` lose nothing that was acknowledged, on nodes that are `STEADY`: a master's replica has all
of it before it takes over, or the master comes back with its disk. `LOSING` may: a master dies at
once, with what its replica has not.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import redis

from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.servers import Server

R = TypeVar("R")
Fault = Callable[[Cluster, str], None]
MAY_NOT = "cluster-replica-no-failover"
STEADY = ("--appendonly", "yes", "--appendfsync", "always", f"--{MAY_NOT}", "yes")
"""Options of nodes that are to lose nothing: what `restart` kills has its disk, and no replica
takes over unasked, however long a busy machine keeps a master from answering.
"""
TAKEOVER = ("CLUSTER", "FAILOVER", "TAKEOVER")  # without a vote, and at once
SHORT_S = 0.4  # a node is silent; less than what makes it a failed one


def kill(cluster: Cluster, place: str) -> None:
    """Kill a master. Its replica takes over, and the old master follows it when it is back."""
    with _heir(cluster, place) as (master, replica):
        _replaced(cluster, place, master, replica)


def drop(cluster: Cluster, place: str) -> None:
    """Kill a master at work while its replica lags for a moment."""
    master = cluster.owner(place)
    replica = cluster.replica_of(master)
    replica.suspend()
    master.ask("CLIENT", "KILL", "TYPE", "replica")  # else it would read on what is under way
    time.sleep(SHORT_S)
    _replaced(cluster, place, master, replica)


def waver(cluster: Cluster, place: str) -> None:
    """Let a master lose its writes of a moment and become the master again. The waiting calls still
    exist."""
    master = cluster.owner(place)
    heir = cluster.replica_of(master)
    replace(master, heir, lambda: time.sleep(SHORT_S))
    master.ask(*TAKEOVER)
    until(lambda: follows(heir), "a replica in step")
    cluster.settled()


def replace(master: Server, heir: Server, meanwhile: Callable[[], R]) -> R:
    """Let *heir* take over without the writes of *meanwhile* to *master*. Return its value once
    *master* follows."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(heir.path)
        asking.sendall(b"PING\r\n")
        assert asking.recv(100) == b"+PONG\r\n"
        heir.suspend()
        asking.sendall(" ".join(TAKEOVER).encode() + b"\r\n")  # it does so before it follows again
        master.ask("CLIENT", "KILL", "TYPE", "replica")  # else it would read on what is under way
        try:
            made = meanwhile()
        finally:
            heir.wake()
        assert asking.recv(100) == b"+OK\r\n"
    until(lambda: follows(master), "a master that is none")
    return made


def follows(node: Server) -> bool:
    """Tell whether a node is in step with a master."""
    return node.info("INFO", "replication").get("master_link_status") == "up"


def _replaced(cluster: Cluster, place: str, master: Server, replica: Server) -> None:
    master.kill()
    replica.wake()
    until(lambda: cluster.owner(place) is replica, "another master")
    master.start()
    cluster.settled()


def freeze(cluster: Cluster, place: str) -> None:
    """Freeze a master for longer than the others wait for it. When it wakes, it is no master any
    more."""
    with _heir(cluster, place) as (master, replica):
        master.suspend()
        until(lambda: cluster.owner(place) is replica, "another master")
        master.wake()
        cluster.settled()
    master.ask("CLIENT", "UNPAUSE")


def restart(cluster: Cluster, place: str) -> None:
    """Kill a master and start it again from its disk."""
    master = cluster.owner(place)
    master.kill()
    master.start()
    cluster.settled()


def stall(cluster: Cluster, place: str) -> None:
    master = cluster.owner(place)
    master.suspend()
    time.sleep(SHORT_S)
    master.wake()


def failover(cluster: Cluster, place: str) -> None:
    """Let a replica take over by hand."""
    replica = cluster.replica_of(cluster.owner(place))
    # it is given up after five seconds: others vote for a replica of one master every two only
    for _ in range(5):
        replica.ask("CLUSTER", "FAILOVER")
        with suppress(AssertionError):
            until(lambda: cluster.owner(place) is replica, "another master", 8.0)
            break
    until(lambda: cluster.owner(place) is replica, "another master")
    cluster.settled()


def move(cluster: Cluster, place: str) -> None:
    cluster.move(place, cluster.other(place))


def migrate(cluster: Cluster, place: str) -> None:
    cluster.migrate(place, cluster.other(place))


def cut(cluster: Cluster, place: str) -> None:
    """Freeze a master, cut all its connections, and wake it. It runs the commands that arrived, and
    their replies are lost.
    """
    master = cluster.owner(place)
    cutting = ("CLIENT", "KILL", "SKIPME", "yes", "TYPE")
    with redis.Redis(unix_socket_path=master.path, single_connection_client=True) as client:
        client.ping()  # connected by now: it is read in one go with the others
        thread = threading.Thread(target=client.execute_command, args=(*cutting, "normal"))
        master.suspend()
        time.sleep(SHORT_S / 2)
        thread.start()
        time.sleep(SHORT_S / 4)
        master.wake()
        thread.join()
    master.ask(*cutting, "pubsub")


@contextmanager
def _heir(cluster: Cluster, place: str) -> Iterator[tuple[Server, Server]]:
    """Yield a master that acknowledges nothing more, and its replica, which has every write and may
    take over.

    So what the master loses from now on was never acknowledged.
    """
    master = cluster.owner(place)
    replica = cluster.replica_of(master)
    master.hand_over(replica)
    replica.ask("CONFIG", "SET", MAY_NOT, "no")
    yield master, replica
    replica.ask("CONFIG", "SET", MAY_NOT, "yes")


EXACT: Sequence[Fault] = (kill, freeze, restart, stall, failover, migrate, cut)
LOSING: Sequence[Fault] = (drop, waver, failover, cut)
