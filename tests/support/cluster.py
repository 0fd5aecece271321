"""Private clusters of the servers that tests have, without `redis-cli`.

    with Cluster(binaries()[0], masters=3, replicas=1) as cluster:
        queue = Queue("q", url=cluster.url)
        cluster.owner("q").kill()

A cluster takes two seconds to start: so long a fresh one waits before it accepts writes. Its
replicas follow their masters, and take over a second or two after one is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from typing import Any, Self

import redis
from redis.crc import key_slot

from headrace import Queue
from tests.support.awaiting import until
from tests.support.servers import Binary, Server

SLOTS = 16_384
NODE_TIMEOUT_MS = 1_000  # after which a node that is silent counts as failed


class Cluster(ExitStack):
    """A cluster of the tests, whose nodes end with its `with` block. The slots are divided evenly
    and in order.

    To tests that know of no cluster it is a server: it makes queues and clients.
    """

    def __init__(
        self, binary: Binary, masters: int = 3, replicas: int = 0, *, extra: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.binary = binary
        self._replicas = replicas
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS)]
        options += ["--repl-diskless-sync-delay", "0", *extra]
        self.nodes = [
            Server(binary, tcp=True, extra=options) for _ in range(masters * (1 + replicas))
        ]
        self.masters = self.nodes[:masters]

    @property
    def url(self) -> str:
        """The URL, with all nodes as seeds."""
        return f"redis+cluster://{','.join(f'{host}:{port}' for host, port in (node.place for node in self.nodes))}"

    def queue(self, name: str, **options: Any) -> Queue[Any]:
        """Make a queue for threads, like `Server.queue`. It is sharded if the server of the matrix
        says so."""
        return Queue(name, **{"url": self.url, **self.binary.options, **options})

    def client(self, **options: Any) -> Anywhere:
        """Make a plain client, like `Server.client`. It sends each command to the node of its
        key."""
        return Anywhere([master.client(**options) for master in self.masters])

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            starting.push(self)
            for node in self.nodes:
                self.enter_context(node)
            self._join()
            starting.pop_all()
        return self

    def _join(self) -> None:
        """Make one cluster of the nodes."""
        first, number = self.nodes[0], len(self.masters)
        for i, node in enumerate(self.masters):
            node.ask("CLUSTER", "ADDSLOTS", *range(i * SLOTS // number, (i + 1) * SLOTS // number))
        for i, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            if node is not first:
                node.ask("CLUSTER", "MEET", *first.place)
        known = str(len(self.nodes))
        self.until(
            lambda node: node.info("CLUSTER", "INFO")["cluster_known_nodes"] == known,
            "acquaintance",
        )
        for i, node in enumerate(self.nodes[number:]):
            self._follow(node, self.masters[i % number])
        self.settled()

    def _follow(self, node: Server, master: Server) -> None:
        name = bytes(master.ask("CLUSTER", "MYID"))

        def follows() -> bool:
            with suppress(redis.ResponseError):  # it does not know that master yet
                return bool(node.ask("CLUSTER", "REPLICATE", name))
            return False

        until(follows, "a master to follow")

    def settled(self) -> None:
        """Wait until all slots are served, and all replicas follow."""
        self.until(
            lambda node: node.info("CLUSTER", "INFO")["cluster_state"] == "ok",
            "a cluster that serves all slots",
        )
        self.until(self._in_step, "replicas in step")

    def _in_step(self, node: Server) -> bool:
        state = node.info("INFO", "replication")
        if state["role"] == "slave":
            return state["master_link_status"] == "up"
        return not self._replicas or int(state["connected_slaves"]) > 0

    def until(self, holds: Any, what: str) -> None:
        """Wait until something holds of every node that is up."""

        def all_hold() -> bool:
            with suppress(redis.RedisError):
                return all(holds(node) for node in self.nodes if node.up)
            return False

        until(all_hold, what)

    def slots(self) -> list[Server | None]:
        """Return the node that serves each slot, as a living node says."""
        owners: list[Server | None] = [None] * SLOTS
        living = next(node for node in self.nodes if node.up)
        for line in living.ask("CLUSTER", "NODES").decode().splitlines():
            _, address, flags, _, _, _, _, _, *ranges = line.split()
            port = int(address.partition("@")[0].rpartition(":")[2])
            node = next(node for node in self.nodes if node.port == port)
            for first, _, last in (
                part.partition("-") for part in ranges if part[0] != "[" and "master" in flags
            ):
                owners[int(first) : int(last or first) + 1] = [node] * (
                    int(last or first) + 1 - int(first)
                )
        return owners

    def owner(self, group: str) -> Server:
        """Return the node that serves the queues of *group*, as far as a living node knows."""
        owner = self.slots()[slot_of(group)]
        assert owner is not None, f"nobody serves {group}"
        return owner

    def groups(self, number: int = 1, prefix: str = "q") -> list[str]:
        """Name queues, so many on each node that serves slots, one node after another."""
        slots, found = self.slots(), {node: list[str]() for node in self.primaries}
        for name in [f"{prefix}{i}" for i in range(100 * number)]:
            if (owner := slots[slot_of(name)]) is not None and len(found[owner]) < number:
                found[owner].append(name)
        return list(chain.from_iterable(found.values()))

    def replica_of(self, master: Server) -> Server:
        return next(
            node
            for node in self.nodes
            if node.up and node.info("INFO", "replication").get("master_port") == str(master.port)
        )

    @property
    def moves_slots_at_once(self) -> bool:
        """Whether `move` is available."""
        return b"MIGRATESLOTS" in b" ".join(self.nodes[0].ask("CLUSTER", "HELP"))

    @property
    def primaries(self) -> list[Server]:
        owners = set(self.slots())
        return [node for node in self.nodes if node in owners]

    def other(self, group: str) -> Server:
        """Return the next node that serves slots and does not serve *group*."""
        primaries = self.primaries
        return primaries[(primaries.index(self.owner(group)) + 1) % len(primaries)]

    def migrate(
        self, group: str, to: Server, *, first: int | None = None, pause: Any = None
    ) -> None:
        """Move the slot of *group* to another master, key by key. *pause* is called during the
        migration, when the *first* keys or half of them have moved.
        """
        slot, source = slot_of(group), self.owner(group)
        others = [node for node in self.primaries if node not in (to, source)]
        name = {node: bytes(node.ask("CLUSTER", "MYID")) for node in (to, source)}
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", name[source])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", name[to])
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        if first_keys := keys[: len(keys) // 2 if first is None else first]:
            source.ask("MIGRATE", *to.place, "", 0, 5000, "KEYS", *first_keys)
        try:
            if pause is not None:
                pause()
        finally:
            while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1000):
                source.ask("MIGRATE", *to.place, "", 0, 5000, "KEYS", *keys)
            for node in (to, source, *others):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", name[to])

    def move(self, group: str, to: Server) -> None:
        """Move the slot of *group* to another master at once, as Valkey 9 does."""
        slot, source = slot_of(group), self.owner(group)
        source.ask(
            "CLUSTER",
            "MIGRATESLOTS",
            "SLOTSRANGE",
            slot,
            slot,
            "NODE",
            bytes(to.ask("CLUSTER", "MYID")),
        )
        until(lambda: self.owner(group) is to, "a slot that has moved")


def slot_of(group: str) -> int:
    return int(key_slot(group.encode()))


class Anywhere(redis.Redis):
    """A plain client of nodes that have equal shares of the slots, in order."""

    def __init__(self, clients: Sequence[redis.Redis]) -> None:
        super().__init__(connection_pool=clients[0].connection_pool)
        self._clients = clients

    def client_of(self, key: str) -> redis.Redis:
        """Return the client of the node that has a key."""
        slot = key_slot(key.encode())
        return next(
            client
            for i, client in enumerate(self._clients, 1)
            if slot < i * SLOTS // len(self._clients)
        )

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command on the node of its key. A command without keys runs on all nodes."""
        key = key_of(
            [word.decode("latin1") if isinstance(word, bytes) else str(word) for word in args[:20]]
        )
        if key is not None:
            return self.client_of(key).execute_command(*args, **options)
        # which most tests mean
        clients = sorted(self._clients, key=lambda client: client is not self.client_of("q"))
        replies = [client.execute_command(*args, **options) for client in clients]
        return MERGED.get(str(args[0]).upper(), first)(replies)

    def scan_iter(self, *args: Any, **options: Any) -> Any:
        return chain.from_iterable(client.scan_iter(*args, **options) for client in self._clients)

    def pipeline(self, *args: Any, **options: Any) -> Any:
        """Make a pipeline to the node of the queue `q`."""
        return self.client_of("q").pipeline(*args, **options)

    def close(self) -> None:
        for client in self._clients:
            client.close()


KEYLESS = {
    "ACL",
    "CLIENT",
    "CONFIG",
    "DBSIZE",
    "FLUSHALL",
    "INFO",
    "KEYS",
    "PING",
    "PUBSUB",
    "SCRIPT",
    "TIME",
}
BEHIND_ONE = {"DEBUG", "MEMORY", "OBJECT", "XGROUP", "XINFO"}  # a word comes before the key
SCRIPTS = {"EVAL", "EVALSHA"}  # a script, and the number of keys, come before the first


def key_of(words: Sequence[str]) -> str | None:
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
    """Add up numbers of all nodes, but take the memory of the fullest, and other values of the
    first."""
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
