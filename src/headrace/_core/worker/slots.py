"""The slots of a handler whose queue has several shards. Its consumers, one a shard, share them and
take turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import define, field

from headrace._core.effects import Call
from headrace._model.checks import FOREVER_S
from headrace._protocol.limits import LEASED_PER_SCRIPT
from headrace._protocol.queue_ops import Ops

if TYPE_CHECKING:
    from headrace._core.worker.consumer import Consumer

WORTH_A_CALL = (
    # jobs that are leased at once, if there are slots for twice as many, or they start soon
    LEASED_PER_SCRIPT
)
ROUND_S = 0.1  # seconds in which each shard should have a turn, if all shards have a backlog
TURNS_AT_ONCE = 2  # shards with a backlog that lease at the same time: more only use memory
# lease calls in a turn at most: jobs leased by one call are settled with a later call
CALLS_A_TURN = 8
# seconds without an answer from the shard whose turn it is, after which another shard has the turn
STILL_S = 0.02
# seconds between calls to two shards that were empty, and are asked again while no slot is free
ASK_EACH_S = 0.01
# seconds for which slots are kept for a lease call; a longer call means that the node is out of
# reach
ASKS_S = 1.0


@define(eq=False)
class Turn:
    consumer: Consumer
    calls: int  # calls that are left in this turn
    began: float  # when its first call was sent

    def over(self, now: float) -> bool:
        member = self.consumer
        if not member.leasing.available or (self.calls <= 0 and not member.leasing.asking):
            return True
        return now - max(self.began, member.leasing.asked_at, member.jobs.slot_moved_at) >= STILL_S


@define(eq=False)
class SharedSlots:
    """The slots that several consumers share. It is safe for threads, as each step is a single
    operation on a dict."""

    members: Sequence[Consumer] = ()
    now: float = 0.0  # the time of the last event
    mean: float | None = None  # seconds that a batch takes
    saturated: bool = False  # one of the members is saturated
    # consumers without a slot, the first in front
    _waiting: dict[int, Consumer] = field(factory=dict[int, "Consumer"])
    _turns: dict[int, Turn] = field(factory=dict[int, Turn])  # turns of shards that have a backlog

    def takes_schedules(self, ops: Ops) -> bool | None:  # noqa: ARG002 - one shard alone does
        """Tell whether schedules are made in the shard of *ops*. `None` means that they are not
        even declared there yet.
        """
        return True

    def gather_schedule(self, ops: Ops, name: str) -> Call[None]:  # noqa: ARG002 - there is no older shard
        yield from ()

    def used(self) -> int:
        number = 0
        recently = self.now - ASKS_S
        for member in self.members:  # a loop, as it runs with each call
            number += len(member.jobs.held)
            if member.leasing.asking and member.leasing.asked_at > recently:
                number += member.leasing.asking
        return number

    def share(self, consumer: Consumer, free: int) -> int:
        """Return the fair share of the *free* slots for *consumer*. If it is 0, the consumer waits
        for its turn, and a slot is kept for it. Only a few consumers with a backlog lease at the
        same time. Each leases several times in a row.
        """
        granted = self._share(consumer, free)
        if granted >= free:
            self._ask_again()
        return granted

    def _share(self, consumer: Consumer, free: int) -> int:
        crowded = self._crowded()  # first, as it ends turns
        turn = self._turns.get(id(consumer))
        takers = self._takers()
        least, soon = self._worth(consumer, takers)
        before = 0
        # fill a started batch before another one starts
        if turn is None and not consumer.jobs.gathered:
            for member in list(self._waiting.values()):
                if member is consumer:
                    break
                # a call to a node out of reach holds up no other consumer
                before += not member.leasing.sending
            if consumer.leasing.backlog and before + len(self._turns) >= TURNS_AT_ONCE:
                self._waiting.setdefault(id(consumer), consumer)
                return 0
            if crowded:
                before = 0  # they wait for a turn, not for a slot
        left = free - self._kept(consumer) - before * least
        if left < least:  # a few slots are not worth a call while all slots have work
            if turn is None or not consumer.jobs.held:  # otherwise the end of its own jobs wakes it
                self._turns.pop(id(consumer), None)
                self._waiting.setdefault(id(consumer), consumer)
            return 0
        self._waiting.pop(id(consumer), None)
        if consumer.leasing.backlog and not consumer.jobs.gathered:
            turn = turn or Turn(consumer, self._calls(consumer, takers), self.now)
            turn.calls -= 1
            self._turns[id(consumer)] = turn
        if consumer.handler.batch:
            return min(left, max(left // takers, soon))
        return max(least, left // takers, min(left // 2, WORTH_A_CALL), min(left, soon))

    def _ask_again(self) -> None:
        """Let consumers whose shards were found empty a round ago wait for a slot. While no slot is
        free, no blocked read watches their shards, so nothing reports new jobs there.
        """
        before = self.now - max(ROUND_S, ASK_EACH_S * len(self.members))
        for member in self.members:
            if (
                not member.leasing.available
                and member.leasing.asked_at <= before
                and member.may_lease()
                and not member.leasing.sending
            ):
                member.leasing.available = True
                self._waiting.setdefault(id(member), member)

    def _crowded(self) -> bool:
        for number, turn in list(self._turns.items()):
            if turn.over(self.now):
                self._turns.pop(number, None)
        return len(self._turns) >= TURNS_AT_ONCE

    def _calls(self, consumer: Consumer, takers: int) -> int:
        """Return how many calls a turn has. It has fewer if jobs take longer, so that a round stays
        short."""
        return max(1, min(CALLS_A_TURN, consumer.starts_within(ROUND_S) // takers // WORTH_A_CALL))

    def _takers(self) -> int:
        return max(1, len([member for member in self.members if member.leasing.available]))

    def _worth(self, consumer: Consumer, takers: int) -> tuple[int, int]:
        """Return the fewest slots that are worth a call, and the jobs that the call may lease
        regardless of the others' shares. The second number fills a batch, or counts jobs that start
        soon.
        """
        handler = consumer.handler
        if handler.batch:
            least = 1 if consumer.jobs.gathered else max(1, handler.max_size // 2)
            return least, handler.max_size - len(consumer.jobs.gathered)
        ahead = consumer.ahead()
        soon = min(WORTH_A_CALL, ahead, consumer.starts_within(ROUND_S) // takers)
        return max(1, min(soon, ahead // 2)), soon

    def _kept(self, consumer: Consumer) -> int:
        if not consumer.handler.batch:
            return 0
        kept = 0
        size = consumer.handler.max_size
        recently = self.now - ASKS_S
        for member in self.members:
            if (
                member is not consumer
                and member.leasing.available
                and (member.jobs.gathered or member.leasing.asking)
            ):
                asked = not member.leasing.asking or member.leasing.asked_at > recently
                kept += (
                    max(0, size - len(member.jobs.gathered) - member.leasing.asking) if asked else 0
                )
        return kept

    def recheck_after(self, consumer: Consumer, now: float) -> float:
        """Record the time. Return the seconds that *consumer* should wait before it asks again,
        unless woken."""
        self.now = now
        if id(consumer) in self._turns:
            return STILL_S
        if id(consumer) not in self._waiting:
            return FOREVER_S
        # the shards whose turn it is may be on a node out of reach
        return ROUND_S if self._crowded() else ASKS_S

    def leave(self, consumer: Consumer) -> None:
        self._waiting.pop(id(consumer), None)
        self._turns.pop(id(consumer), None)

    def next(self) -> Consumer | None:
        if not self._waiting or self._crowded():
            return None
        first = next(
            (member for member in list(self._waiting.values()) if not member.leasing.sending), None
        )
        if (
            first is None
            or first.free() - self._kept(first) < self._worth(first, self._takers())[0]
        ):
            return None
        return first

    def moved(self) -> None:
        self.saturated = False
        for member in self.members:
            member.leasing.saturated = False


def sharing(consumer: Consumer) -> Sequence[Consumer]:
    return [consumer] if consumer.shared is None else consumer.shared.members


def first_of(consumer: Consumer) -> Consumer:
    return sharing(consumer)[0]


def leads(consumer: Consumer) -> bool:
    return first_of(consumer) is consumer
