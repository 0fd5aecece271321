"""Leasing from a sharded queue without a worker: its shards are asked in turn."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from headrace._core.effects import Sleep, Step, Undo, current_time
from headrace._core.queue.calls import pauses
from headrace._core.queue.leasing import Peer, new_name
from headrace._core.shards.map import ShardMap
from headrace._core.shards.reshard import behind
from headrace._core.shards.transfer import Targets, hand_over
from headrace._model.job import Claim
from headrace._model.shards import Part, Table
from headrace._protocol.op import Op

ASK_AFTER_S, ASK_EVERY_S = 0.01, 0.1  # seconds between two looks of a call that waits: at first, and in the end
TABLE_EVERY_S = 1.0  # seconds between two looks at the table, at most, where there are jobs
LOOK_EVERY_S = 1.0  # seconds between two looks for jobs that are on their way to other shards


@define(eq=False)
class ShardedPeer:
    """The peers of all shards, in place of a worker: each leases under a name of its own."""

    map: ShardMap
    targets: Targets
    _peers: dict[Part, Peer] = field(factory=dict[Part, Peer])
    _look_at: float = 0.0  # when to look for jobs that are to go to other shards
    _turn: int = field(factory=lambda: random.randrange(1 << 16))
    _looked: float = float("-inf")  # when the table was read last
    _first: Peer = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._first = self._of(self.map.ordered()[0].shard.number)

    def _of(self, number: int) -> Peer:
        ops = self.map.at(number)
        if ops.shard not in self._peers:
            self._peers[ops.shard] = Peer(ops, new_name())
        return self._peers[ops.shard]

    @property
    def name(self) -> str:
        """The name of the first."""
        return self._first.name

    def peers(self) -> list[Peer]:
        """List the jobs of all shards."""
        return list(self._peers.values())

    def ttl(self, duration: float | None) -> float:
        """Return the seconds for which it counts as alive."""
        return self._first.ttl(duration)

    def lease(self, limit: int, block: float | None, duration: float | None, at_most_once: bool) -> Step[list[Claim]]:
        """Lease up to *limit* jobs of all shards, which are asked in turn; wait up to *block* seconds for the first.

        A call that is interrupted keeps nothing; one that fails at a shard returns the claims of the others.
        """
        start, looks = (yield from current_time()), pauses(ASK_AFTER_S, ASK_EVERY_S)
        if not self.map.known or self._looked + TABLE_EVERY_S <= start:
            yield from self._look()
        while True:
            if self._look_at <= (now := (yield from current_time())):
                self._look_at = now + LOOK_EVERY_S
                yield from hand_over(self.map, self.map.ordered(), self.targets)
            asked = self.map.table
            taken = yield from self._ask_all(limit, duration, at_most_once)
            if taken:
                return taken
            if (yield from self._look(asked)):
                continue  # there are shards that were not asked
            left = 1.0 if block is None else start + block - (yield from current_time())
            if left <= 0:
                return taken
            yield Sleep(min(next(looks), left))

    def _ask_all(self, limit: int, duration: float | None, at_most_once: bool) -> Step[list[Claim]]:
        taken: list[Claim] = []
        first = self._turn = self._turn + 1  # others take their turns meanwhile
        table = self.map.table
        numbers = [part.number for part in table.parts]
        if self.map.ops.settings.ordered and len(numbers) > len(table.takers):
            waiting = yield from behind(self.map, table)
            numbers = [number for number in numbers if number not in waiting]
        for at in range(len(numbers)):
            peer = self._of(numbers[(first + at) % len(numbers)])
            try:
                taken += yield from peer.lease(limit - len(taken), 0.0, duration, at_most_once)
            except GeneratorExit:
                raise
            except Exception:
                if not taken:
                    raise
                return taken
            except BaseException:
                if taken and not at_most_once:
                    yield Undo(self.release(taken))
                raise
            if len(taken) == limit:
                break
        return taken

    def _look(self, seen: Table | None = None) -> Step[bool]:
        self._looked = yield from current_time()
        return (yield from self.map.look(seen))

    def release(self, claims: Sequence[Claim]) -> list[Op[list[bool]]]:
        """Make operations that give *claims* back to the front."""
        there: dict[int, list[Claim]] = defaultdict(list)
        for claim in claims:
            there[claim.job.shard].append(claim)
        return [op for number, some in there.items() for op in self._of(number).release(some)]

    def leaving(self) -> list[Op[Any]]:
        """Make the operations that end the registrations."""
        return [op for peer in self._peers.values() for op in peer.leaving()]
