"""Leases that are kept without a worker. They are renewed, and their holder sends heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from attrs import define, field

from headrace._core.effects import Call, Now, Send, send_all
from headrace._core.queue.leasing import DirectLeaser
from headrace._model.job import Claim
from headrace._model.settings import WorkerSettings
from headrace._protocol.limits import CLAIMS_PER_SCRIPT, COURTESY_S
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops

Key = tuple[int, str, int]


@define(eq=False)
class Keeping:
    claims: Callable[[], Sequence[Claim]]  # looked at with each beat
    at: Callable[[Claim], Ops]
    leasers: Callable[[], Sequence[DirectLeaser]]
    lease: float  # seconds that a lease lasts, unless its call says otherwise
    settings: WorkerSettings
    _renewed: dict[Key, float] = field(factory=dict[Key, float])  # when each was renewed last
    _lost: set[Key] = field(factory=set[Key])

    def beat(self) -> Call[float]:
        """Send a heartbeat, and renew leases after a third of their time. Return the seconds until
        the next beat."""
        now = yield from Now()
        claims = {(claim.job.shard, claim.entry, claim.token): claim for claim in self.claims()}
        self._lost &= claims.keys()
        self._renewed = {key: at for key, at in self._renewed.items() if key in claims}
        due = [
            (key, claim)
            for key, claim in claims.items()
            if key not in self._lost
            and now - self._renewed.get(key, float("-inf")) >= self._lasts(claim) / 3
        ]
        asked = list(self._renewals(due))
        beats = self._beats([self.settings.timeout] * len(leasers := self._registered()), leasers)
        ops: list[Op[Any]] = [*(op for op, _ in asked), *beats]
        replies: list[Any] = (yield from send_all(ops)) if ops else []
        for (_, keys), kept in zip(asked, replies, strict=False):
            for key, ours in zip(keys, kept, strict=True):
                if ours:
                    self._renewed[key] = now
                else:
                    self._lost.add(key)
                    claims[key].job.lost.set()
        return min(
            self.settings.heartbeat,
            self.lease / 6,
            *(self._lasts(claim) / 6 for claim in claims.values()),
        )

    def end(self) -> Call[None]:
        """Let the holder count as alive until its leases end."""
        leasers = self._registered()
        if beats := self._beats([leaser.longest for leaser in leasers], leasers):
            yield Send(beats, COURTESY_S)

    def _lasts(self, claim: Claim) -> float:
        return self.lease if claim.duration is None else claim.duration

    def _registered(self) -> list[DirectLeaser]:
        return [leaser for leaser in self.leasers() if leaser.registered]

    @staticmethod
    def _beats(seconds: Sequence[float], leasers: Sequence[DirectLeaser]) -> list[Op[bool]]:
        return [
            leaser.ops.beat(leaser.name, one) for one, leaser in zip(seconds, leasers, strict=True)
        ]

    def _renewals(
        self, due: Sequence[tuple[Key, Claim]]
    ) -> Iterator[tuple[Op[list[bool]], list[Key]]]:
        def alike(one: tuple[Key, Claim]) -> tuple[int, str, float]:
            return one[1].job.shard, one[1].worker, one[1].duration or 0.0

        for _, group in groupby(sorted(due, key=alike), key=alike):
            some = list(group)
            for start in range(0, len(some), CLAIMS_PER_SCRIPT):
                keys = [key for key, _ in some[start : start + CLAIMS_PER_SCRIPT]]
                claims = [claim for _, claim in some[start : start + CLAIMS_PER_SCRIPT]]
                yield self.at(claims[0]).renew(claims, duration=claims[0].duration), keys
