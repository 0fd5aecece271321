"""The slots of a handler whose queue has several shards: its consumers, one a shard, share them and take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attrs import define, field

from headrace._core.shard_map import ShardMap
from headrace._model.checks import FOREVER_S
from headrace._protocol.queue_ops import Ops

if TYPE_CHECKING:
    from headrace._core.worker.consumer import Consumer

WORTH_A_CALL = 250  # jobs that are leased at once, if there are slots for twice as many
ASKS_S = 1.0  # seconds for which slots are kept for a lease call; one that takes longer is to a node out of reach


@define(eq=False)
class SharedSlots:
    """The slots that several consumers share. Threads may use it: each step is one of a dict."""

    members: Sequence[Consumer] = ()
    map: ShardMap | None = None  # the shards, one a member
    make: Callable[[Ops], Consumer] | None = None  # makes the member of another shard
    now: float = 0.0  # when one of them began a call last
    mean: float | None = None  # seconds that a unit takes
    stuck: bool = False  # one of them is
    _waiting: dict[int, Consumer] = field(factory=dict[int, "Consumer"])  # those that got no slot, the first in front

    def used(self) -> int:
        """Return how many jobs hold slots, or are asked for."""
        now = self.now
        return sum(len(one.held) + (one.asking if now - one.asked_at < ASKS_S else 0) for one in self.members)

    def share(self, consumer: Consumer, free: int) -> int:
        """Return how many of the *free* slots are for *consumer* now: a fair part. If there is none, it waits for its
        turn, and one is kept for it.
        """
        handler, takers = consumer.handler, max(1, sum(one.available for one in self.members))
        ahead = consumer.ahead()
        least = handler.max_size // 2 if handler.batch else min(WORTH_A_CALL // 2, ahead, 2 * ahead // takers)
        least = max(1, least)
        before = 0
        for one in list(self._waiting.values()):
            if one is consumer:
                break
            before += not one.sending  # what is under way to a node out of reach holds nobody up
        left = free - before * least
        if left < least:  # few are not worth a call, while all slots have work
            self._waiting.setdefault(id(consumer), consumer)
            return 0
        self.leave(consumer)
        worth = min(left, handler.max_size) if handler.batch else min(left // 2, WORTH_A_CALL)
        return max(least, left // takers, worth)

    def look(self, consumer: Consumer, now: float) -> float:
        """Take in the time; return the seconds after which *consumer* is to ask again, if nothing wakes it."""
        self.now = now
        return ASKS_S if id(consumer) in self._waiting else FOREVER_S

    def leave(self, consumer: Consumer) -> None:
        """Take in that *consumer* waits for no slot."""
        self._waiting.pop(id(consumer), None)

    def next(self) -> Consumer | None:
        """Return the consumer whose turn it is, if one waits."""
        return next((one for one in list(self._waiting.values()) if not one.sending), None)

    def moved(self, mean: float | None) -> None:
        """Take in that a handler has ended, which take *mean* seconds, if that is known: what was given back for want
        of slots may be leased again.
        """
        self.mean = mean
        if self.stuck:
            self.stuck = False
            for one in self.members:
                one.stuck = False


def first_of(consumer: Consumer) -> Consumer:
    """Return the first of those that share slots with *consumer*: itself, if it has its own."""
    return consumer if consumer.shared is None else consumer.shared.members[0]


def leads(consumer: Consumer) -> bool:
    """Tell whether *consumer* is the first of those that share its slots."""
    return first_of(consumer) is consumer
