"""Three masters in place of one server, for tests that know of no cluster.

A test asks a server for queues (`server.queue`) and for plain clients (`server.client`). Here a queue finds its nodes
as any does, and is sharded if the server of the matrix says so; a plain client sends each command where its key is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import redis
from redis.crc import key_slot

from headrace import Queue
from tests.support.cluster import SLOTS, Cluster
from tests.support.servers import Binary


class Masters:
    """The masters of a cluster, as one server of the matrix."""

    def __init__(self, binary: Binary, cluster: Cluster) -> None:
        self.binary, self.nodes, self.url = binary, cluster.masters, cluster.url

    def queue(self, name: str, **options: Any) -> Queue[Any]:
        """Make a queue for threads, like `Server.queue`."""
        return Queue(name, **{"url": self.url, **self.binary.options, **options})

    def client(self, **options: Any) -> Anywhere:
        """Make a plain client, like `Server.client`."""
        return Anywhere([redis.Redis(unix_socket_path=node.path, **options) for node in self.nodes])

    def inline(self, command: str) -> list[str]:
        """Send one command to each node, like `Server.inline`."""
        return [node.inline(command) for node in self.nodes]


class Anywhere(redis.Redis):
    """A plain client of nodes that have equal shares of the slots, in order."""

    def __init__(self, clients: Sequence[redis.Redis]) -> None:
        super().__init__(connection_pool=clients[0].connection_pool)
        self._clients = clients

    def client_of(self, key: str) -> redis.Redis:
        """Return the client of the node that has a key."""
        slot = key_slot(key.encode())
        return next(client for i, client in enumerate(self._clients, 1) if slot < i * SLOTS // len(self._clients))

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command where its key is; one without keys on all nodes."""
        key = key_of([word.decode("latin1") if isinstance(word, bytes) else str(word) for word in args[:20]])
        if key is not None:
            return self.client_of(key).execute_command(*args, **options)
        clients = sorted(self._clients, key=lambda client: client is not self.client_of("q"))  # which most tests mean
        replies = [client.execute_command(*args, **options) for client in clients]
        return MERGED.get(str(args[0]).upper(), first)(replies)

    def scan_iter(self, *args: Any, **options: Any) -> Any:
        """Yield the keys of all nodes."""
        return chain.from_iterable(client.scan_iter(*args, **options) for client in self._clients)

    def pipeline(self, *args: Any, **options: Any) -> Any:
        """Make a pipeline to the node of the queue `q`."""
        return self.client_of("q").pipeline(*args, **options)

    def close(self) -> None:
        """Close the clients of all nodes."""
        for client in self._clients:
            client.close()


KEYLESS = {"ACL", "CLIENT", "CONFIG", "DBSIZE", "FLUSHALL", "INFO", "KEYS", "PING", "PUBSUB", "SCRIPT", "TIME"}
BEHIND_ONE = {"DEBUG", "MEMORY", "OBJECT", "XGROUP", "XINFO"}  # a word comes before the key
SCRIPTS = {"EVAL", "EVALSHA"}  # a script, and the number of keys, come before the first


def key_of(words: Sequence[str]) -> str | None:
    """Return the first key of a command."""
    words = [*words[0].upper().split(), *words[1:]]
    if words[0] in KEYLESS:
        return None
    if words[0] in {"XREAD", "XREADGROUP"}:
        return words[words.index("STREAMS") + 1]
    return words[2 if words[0] in BEHIND_ONE else 3 if words[0] in SCRIPTS else 1]


def first(replies: Sequence[Any]) -> Any:
    """Return the reply of the node of the queue `q`."""
    return replies[0]


def joined(replies: Sequence[Any]) -> list[Any]:
    """Join the lists of all nodes."""
    return list(chain.from_iterable(replies))


def summed(replies: Sequence[Any]) -> Any:
    """Add up numbers of all nodes, but memory, which is that of the fullest; take other values from the first."""
    reply: Any = replies[0]
    if isinstance(reply, dict) and "used_memory" in reply:
        return max(replies, key=lambda other: int(other["used_memory"]))
    if isinstance(reply, dict):
        names = dict.fromkeys(joined(replies))
        return {name: summed([other[name] for other in replies if name in other]) for name in names}
    return sum(replies) if isinstance(reply, (int, float)) else reply


MERGED: dict[str, Callable[[Sequence[Any]], Any]] = {
    "INFO": summed,
    "DBSIZE": sum,
    **dict.fromkeys(("KEYS", "CLIENT LIST", "PUBSUB CHANNELS", "PUBSUB SHARDCHANNELS"), joined),
    **dict.fromkeys(("PUBSUB NUMSUB", "PUBSUB SHARDNUMSUB"), joined),
}
