"""Private clusters of the servers that tests have, without `redis-cli`.

    with Cluster(binaries()[0], masters=3, replicas=1) as cluster:
        queue = Queue("q", url=cluster.url)
        cluster.owner("q").kill()

A cluster takes two seconds to start: so long a fresh one waits before it accepts writes. Its replicas follow their
masters, and take over a second or two after one is gone.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

import redis
from redis.crc import key_slot

from tests.support.awaiting import until
from tests.support.servers import Binary, Server

SLOTS = 16_384
NODE_TIMEOUT_MS = 1_000  # after which a node that is silent counts as failed


class Node(Server):
    """A node of a cluster, or of a primary with replicas: a server on a port, with what tests ask it."""

    _frozen = False

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        assert self.port is not None
        return "127.0.0.1", self.port

    def ask(self, *command: Any) -> Any:
        """Run a command on this node, and return its reply as it came."""
        with redis.Redis(unix_socket_path=self.path, socket_timeout=10, protocol=2) as client:
            client.response_callbacks.clear()  # pyright: ignore[reportUnknownMemberType]
            return client.execute_command(*command)

    def info(self, *command: str) -> dict[str, str]:
        """Return what `INFO` or `CLUSTER INFO` says."""
        return dict(line.split(":", 1) for line in self.text(*command).splitlines() if ":" in line)

    def text(self, *command: str) -> str:
        """Run a command whose reply is a text. Raises `redis.RedisError`."""
        try:
            reply = self.inline(" ".join(command))
        except OSError as error:
            raise redis.ConnectionError(str(error)) from error
        if reply.startswith("-"):
            raise redis.ResponseError(reply)
        return reply

    def hand_over(self, replica: Node, pause_ms: int = 60_000) -> None:
        """Have it take no more writes until `CLIENT UNPAUSE`, and *replica* have everything that it acknowledged."""
        self.ask("CLIENT", "PAUSE", pause_ms, "WRITE")
        offset = int(self.info("INFO", "replication")["master_repl_offset"])
        until(lambda: int(replica.info("INFO", "replication")["slave_repl_offset"]) >= offset, "a replica in step")

    def suspend(self) -> None:
        """Freeze it: it answers nothing, and its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self._frozen = True

    def wake(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._frozen = False

    @property
    def up(self) -> bool:
        """Whether it was started, and neither killed nor frozen."""
        return self._process is not None and not self._frozen


class Cluster:
    """A cluster of ours; a context manager. The slots are dealt out evenly, in order."""

    def __init__(self, binary: Binary, masters: int = 3, replicas: int = 0, *, extra: Sequence[str] = ()) -> None:
        self.binary = binary
        self._replicas = replicas
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS)]
        options += ["--repl-diskless-sync-delay", "0", *extra]
        self.nodes = [Node(binary, tcp=True, extra=options) for _ in range(masters * (1 + replicas))]
        self.masters = self.nodes[:masters]
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """The URL, with all nodes as seeds."""
        return f"redis+cluster://{','.join(f'{host}:{port}' for host, port in (node.place for node in self.nodes))}"

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self._stack.enter_context(node)
            self._join()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            if node.up:
                node.kill()  # without a goodbye: there is nothing to keep
        self._stack.close()

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
        self.until(lambda node: node.info("CLUSTER", "INFO")["cluster_known_nodes"] == known, "acquaintance")
        for i, node in enumerate(self.nodes[number:]):
            self._follow(node, self.masters[i % number])
        self.settled()

    def _follow(self, node: Node, master: Node) -> None:
        name = bytes(master.ask("CLUSTER", "MYID"))

        def follows() -> bool:
            with suppress(redis.ResponseError):  # it does not know that master yet
                return bool(node.ask("CLUSTER", "REPLICATE", name))
            return False

        until(follows, "a master to follow")

    def settled(self) -> None:
        """Wait until all slots are served, and all replicas follow."""
        self.until(
            lambda node: node.info("CLUSTER", "INFO")["cluster_state"] == "ok", "a cluster that serves all slots"
        )
        self.until(self._in_step, "replicas in step")

    def _in_step(self, node: Node) -> bool:
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

    def ranges(self) -> Iterator[tuple[int, int, Node]]:
        """Yield the first and the last slot of each range, and the node that serves it, as a living node says."""
        living = next(node for node in self.nodes if node.up)
        for line in living.text("CLUSTER", "NODES").splitlines():
            _, address, flags, _, _, _, _, _, *slots = line.split()
            port = int(address.partition("@")[0].rpartition(":")[2])
            for first, _, last in (slot.partition("-") for slot in slots if slot[0] != "[" and "master" in flags):
                yield int(first), int(last or first), next(node for node in self.nodes if node.port == port)

    def owner(self, group: str) -> Node:
        """Return the node that serves the queues of *group*."""
        slot = slot_of(group)
        return next(node for first, last, node in self.ranges() if first <= slot <= last)

    def serves(self, node: Node, group: str) -> bool:
        """Tell whether *node* serves the queues of *group*, as far as a living node knows."""
        slot = slot_of(group)
        return any(first <= slot <= last and owner is node for first, last, owner in self.ranges())

    def groups(self, number: int = 1, prefix: str = "q") -> list[str]:
        """Name queues, so many on each master, one master after another."""
        ranges, found = list(self.ranges()), dict[Node, list[str]]()
        i = 0
        while len(found) < len(self.masters) or any(len(names) < number for names in found.values()):
            name = f"{prefix}{i}"
            slot = slot_of(name)
            found.setdefault(next(n for first, last, n in ranges if first <= slot <= last), []).append(name)
            i += 1
        return [name for node in self.masters if node in found for name in found[node][:number]]

    def replica_of(self, master: Node) -> Node:
        """Return a node that follows *master*."""
        return next(
            node
            for node in self.nodes
            if node.up and node.info("INFO", "replication").get("master_port") == str(master.port)
        )

    @property
    def moves_slots_at_once(self) -> bool:
        """Whether `move` can be had."""
        return b"MIGRATESLOTS" in b" ".join(self.nodes[0].ask("CLUSTER", "HELP"))

    @property
    def primaries(self) -> list[Node]:
        """The nodes that serve slots now."""
        return list(dict.fromkeys(node for *_, node in self.ranges()))

    def other(self, group: str) -> Node:
        """Return a node that serves slots, and not that of *group*: the next one."""
        primaries = sorted(self.primaries, key=self.nodes.index)
        return primaries[(primaries.index(self.owner(group)) + 1) % len(primaries)]

    def migrate(self, group: str, to: Node, *, first: int | None = None, pause: Any = None) -> None:
        """Move the slot of *group* to another master, key by key. *pause*: called with the slot open, when the *first*
        keys have moved, or half of them.
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

    def move(self, group: str, to: Node) -> None:
        """Move the slot of *group* to another master at once, as Valkey 9 does."""
        slot, source = slot_of(group), self.owner(group)
        source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", bytes(to.ask("CLUSTER", "MYID")))
        until(lambda: self.owner(group) is to, "a slot that has moved")

    def synced(self, group: str) -> tuple[Node, Node]:
        """Have the master of *group* acknowledge nothing more, for a minute, and its replica catch up: return both.

        So what it loses from now on was never acknowledged.
        """
        master = self.owner(group)
        replica = self.replica_of(master)
        master.hand_over(replica)
        return master, replica


def slot_of(group: str) -> int:
    """Return the slot of a group's keys."""
    return int(key_slot(group.encode()))
