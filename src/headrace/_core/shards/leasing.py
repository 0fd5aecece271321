"""Leasing from a sharded queue without a worker. The shards are asked in turn.

A shard that does not answer soon is asked again at the end of the turn, or skipped if its node is
known to be silent.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from headrace._core.effects import Call, Now, Sleep, Undo, hurried
from headrace._core.fair.leasing import leaser
from headrace._core.queue.calls import pauses
from headrace._core.queue.leasing import DirectLeaser
from headrace._core.shards.map import ShardMap
from headrace._core.shards.reshard import behind
from headrace._core.shards.transfer import WITHIN_S, Targets, hand_over
from headrace._model.job import Claim
from headrace._model.shards import ShardRow, Table
from headrace._protocol.limits import POLL_S
from headrace._protocol.op import Op

# seconds between two tries of a call that waits: at first, and later
ASK_AFTER_S, ASK_EVERY_S = 0.01, 0.1
SOON_S = 0.5  # seconds for a shard's answer, while other shards are left to ask


def _silent(error: Exception) -> bool:
    return getattr(error, "outcome", "refused") != "refused"


# one round through the shards
@define(eq=False)
class _Turn:
    leaser: ShardedLeaser
    limit: int  # jobs asked for
    duration: float | None
    at_most_once: bool
    taken: list[Claim] = field(factory=list[Claim])
    failed: dict[int, Exception] = field(factory=dict[int, Exception])

    def ask(self, number: int, within: float | None) -> Call[bool]:
        """Lease jobs of one shard, with *within* seconds for each round trip.

        Return true if there are enough jobs now. If no other shard has given jobs, raise an error
        that a retry can't heal.
        """
        leaser = self.leaser.of(number)
        claims = list[Claim]()
        try:
            claims = yield from hurried(
                leaser.lease(self.limit - len(self.taken), 0.0, self.duration, False), within
            )
            self.taken += (yield from leaser.completed(claims)) if self.at_most_once else claims
        except GeneratorExit:
            raise
        except BaseException as error:
            taken = () if isinstance(error, Exception) else self.taken
            back = claims if self.at_most_once else taken
            if back:
                yield Undo(self.leaser.release(back))
            if (
                not isinstance(error, Exception)
                or not (self.taken or hasattr(error, "outcome"))
                or within is None
            ):
                raise
            self.failed[number] = error
        else:
            self.failed.pop(number, None)
        return len(self.taken) == self.limit


@define(eq=False)
class ShardedLeaser:
    """The leasers of all shards, in place of a worker. Each leaser leases under its own name."""

    map: ShardMap
    targets: Targets
    _leasers: dict[ShardRow, DirectLeaser] = field(factory=dict[ShardRow, DirectLeaser])
    _look_at: float = 0.0  # when to look next for jobs to send to other shards
    _turn: int = field(factory=lambda: random.randrange(1 << 16))
    _looked: float = float("-inf")  # when the table was read last
    _first: DirectLeaser = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._first = self.of(self.map.ordered()[0].shard.number)

    def of(self, number: int) -> DirectLeaser:
        ops = self.map.at(number)
        if ops.shard not in self._leasers:
            self._leasers[ops.shard] = leaser(ops)
        return self._leasers[ops.shard]

    @property
    def name(self) -> str:
        return self._first.name

    def leasers(self) -> list[DirectLeaser]:
        return list(self._leasers.values())

    def ttl(self, duration: float | None) -> float:
        return self._first.ttl(duration)

    def lease(
        self, limit: int, block: float | None, duration: float | None, at_most_once: bool
    ) -> Call[list[Claim]]:
        """Lease up to *limit* jobs of all shards, asked in turn. Wait up to *block* seconds for the
        first job.

        An interrupted call keeps no job. If a shard fails, the call returns the claims of the
        others. Without claims, it raises the shard's error. It raises the error of a shard that
        does not answer only if no shard answers.
        """
        start = yield from Now()
        looks = pauses(ASK_AFTER_S, ASK_EVERY_S)
        if not self.map.known or self._looked + POLL_S <= start:
            yield from self._look(SOON_S)
        while True:
            if self._look_at <= (now := (yield from Now())):
                self._look_at = now + POLL_S
                yield from hurried(hand_over(self.map, self.map.ordered(), self.targets), SOON_S)
            asked = self.map.table
            taken = yield from self._ask_all(limit, duration, at_most_once, now)
            if taken:
                return taken
            if (yield from self._look(self._patience, asked)):
                continue  # some shards were not asked
            left = 1.0 if block is None else start + block - (yield from Now())
            if left <= 0:
                return taken
            yield Sleep(min(next(looks), left))

    def _ask_all(
        self, limit: int, duration: float | None, at_most_once: bool, since: float
    ) -> Call[list[Claim]]:
        first = self._turn = self._turn + 1  # other calls take their turns meanwhile
        table = self.map.table
        numbers = [part.number for part in table.shards]
        if self.map.ops.settings.ordered and len(numbers) > len(table.takers):
            waiting = yield from behind(self.map, table)
            numbers = [number for number in numbers if number not in waiting]
        numbers = [numbers[(first + at) % len(numbers)] for at in range(len(numbers))]
        numbers = [number for number in numbers if self._sound(number)] or numbers
        turn = _Turn(self, limit, duration, at_most_once)
        for number in numbers:
            if turn.failed and not self._sound(number):  # the node has just kept us waiting
                turn.failed[number] = next(reversed(turn.failed.values()))
            elif (yield from turn.ask(number, SOON_S)):
                return turn.taken
        yield from self._ask_again(turn, numbers, since)
        met = sorted(turn.failed.values(), key=_silent)
        if not turn.taken and met and (len(met) == len(numbers) or not _silent(met[0])):
            raise met[0]
        return turn.taken

    def _ask_again(self, turn: _Turn, numbers: list[int], since: float) -> Call[None]:
        """Ask the shards that failed again. While no shard answers, go on for as long as a call may
        take."""
        while turn.failed and not turn.taken:
            silence = len(turn.failed) == len(numbers)
            until = since + (self.map.ops.settings.timeout if silence else self._patience)
            for number, error in list(turn.failed.items()):
                left = min(until - (yield from Now()), WITHIN_S) if _silent(error) else None
                if (left is None or left > 0) and (yield from turn.ask(number, left)):
                    return
            if not silence or until <= (yield from Now()):
                return

    def _sound(self, number: int) -> bool:
        return self.map.sound(self.map.at(number).keys)

    @property
    def _patience(self) -> float:
        return min(self.map.ops.settings.timeout, WITHIN_S)

    def _look(self, within: float, seen: Table | None = None) -> Call[bool]:
        """Read the table. Return true if it differs from the *seen* one. If its node is silent, the
        known table serves.
        """
        self._looked = yield from Now()
        if not self.map.known:
            return (yield from self.map.look(seen))
        try:
            return self.map.sound(self.map.ops.keys) and (
                yield from hurried(self.map.look(seen), within)
            )
        except Exception as error:
            return not _silent(error) and (yield from self.map.look(seen))

    def release(self, claims: Sequence[Claim]) -> list[Op[list[bool]]]:
        there: dict[int, list[Claim]] = defaultdict(list)
        for claim in claims:
            there[claim.job.shard].append(claim)
        return [op for number, some in there.items() for op in self.of(number).release(some)]

    def leaving(self) -> list[Op[Any]]:
        return [op for leaser in self._leasers.values() for op in leaser.leaving()]
