"""Leasing from a sharded queue without a worker: its shards are asked in turn."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from headrace._core.calls import pauses
from headrace._core.effects import Sleep, Step, Undo, current_time
from headrace._core.leasing import Peer
from headrace._model.job import Claim
from headrace._protocol.op import Op

ASK_AFTER_S, ASK_EVERY_S = 0.01, 0.1  # seconds between two looks of a call that waits: at first, and in the end

LOOK_EVERY_S = 1.0  # seconds between two looks for jobs that are on their way to other shards


@define(eq=False)
class ShardedPeer:
    """The peers of all shards, in place of a worker: each leases under a name of its own."""

    peers: Sequence[Peer]
    ready: Callable[[], Step[None]]
    hand_over: Callable[[], Step[list[str]]]
    _look_at: float = 0.0  # when to look for jobs that are to go to other shards
    _turn: int = field(factory=lambda: random.randrange(1 << 16))

    @property
    def name(self) -> str:
        """The name of the first."""
        return self.peers[0].name

    def ttl(self, duration: float | None) -> float:
        """Return the seconds for which it counts as alive."""
        return self.peers[0].ttl(duration)

    def lease(self, limit: int, block: float | None, duration: float | None, at_most_once: bool) -> Step[list[Claim]]:
        """Lease up to *limit* jobs of all shards, which are asked in turn; wait up to *block* seconds for the first.

        A call that is interrupted keeps nothing; one that fails at a shard returns what others gave.
        """
        yield from self.ready()
        start, looks = (yield from current_time()), pauses(ASK_AFTER_S, ASK_EVERY_S)
        taken: list[Claim] = []
        while True:
            self._turn += 1
            if self._look_at <= (now := (yield from current_time())):
                self._look_at = now + LOOK_EVERY_S
                yield from self.hand_over()
            for at in range(len(self.peers)):
                peer = self.peers[(self._turn + at) % len(self.peers)]
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
                    return taken
            left = 1.0 if block is None else start + block - (yield from current_time())
            if taken or left <= 0:
                return taken
            yield Sleep(min(next(looks), left))

    def release(self, claims: Sequence[Claim]) -> list[Op[list[bool]]]:
        """Make operations that give *claims* back to the front."""
        there: dict[int, list[Claim]] = defaultdict(list)
        for claim in claims:
            there[claim.job.shard].append(claim)
        return [op for number, some in there.items() for op in self.peers[number].release(some)]

    def leaving(self) -> list[Op[Any]]:
        """Make the operations that end the registrations."""
        return [op for peer in self.peers for op in peer.leaving()]
