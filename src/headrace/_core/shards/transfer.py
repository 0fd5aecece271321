"""The transfer of jobs to other shards. Each job arrives exactly once, whatever fails meanwhile.

If a follow-up belongs to another shard, the script that creates it writes it to the local outbox.
Three steps follow, which any program may take or repeat. First the target shard accepts the job,
and keeps its nonce, so that it is accepted once. Then the outbox removes the job, and says so.
Later the target shard forgets the nonce.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

from attrs import define, evolve, field

from headrace._core.effects import Call, Now, Send
from headrace._core.shards.map import ShardMap
from headrace._model.policy import Durability
from headrace._model.shards import ShardRow
from headrace._protocol.durability import DurabilityWait
from headrace._protocol.limits import PAGES_IN_A_ROW, SILENT_S
from headrace._protocol.op import Op
from headrace._protocol.shards import ShardOps
from headrace._protocol.transfer_ops import (
    Accepted,
    Intent,
    Pending,
    Target,
    accept,
    close,
    closing_target,
    hand,
)
from headrace.errors import NotDurable, describe_error

WITHIN_S = 5.0  # seconds for a shard's answer: other shards wait meanwhile
ALONE_S = 60.0  # seconds to wait for a node that had a replica lately: the replica may replace it
_REPLICATED = Durability(replicas=1)


# facts about the shards to which jobs were sent
@define(eq=False)
class Targets:
    # the shard's time at its last answer
    since: dict[Target, int] = field(factory=dict[Target, int])
    replicated: set[int] = field(factory=set[int])  # shards whose nodes have replicas
    # shards whose nodes lost their replicas, and when
    alone: dict[int, float] = field(factory=dict[int, float])
    avoided: dict[int, float] = field(factory=dict[int, float])  # until when to avoid silent shards


def hand_over(
    known: ShardMap, outboxes: Sequence[ShardOps], targets: Targets, pages: int = PAGES_IN_A_ROW
) -> Call[list[str]]:
    """Send the jobs in some outboxes, up to *pages* of each, and close finished transfers. Return
    texts about failures. The next call, of any program, continues from there.
    """
    return _HandOver(known, outboxes, targets, pages).run()


@define(eq=False)
class _HandOver:
    known: ShardMap
    outboxes: Sequence[ShardOps]
    targets: Targets
    pages: int
    wrong: list[str] = field(factory=list[str])
    # the shards' times, known before the page was read
    since: dict[Target, int] = field(factory=dict[Target, int])
    late: bool = False  # a shard has only told its time: the page must be read again

    def run(self) -> Call[list[str]]:
        there = [ops for ops in self.outboxes if self.known.sound(ops.keys)]
        pages: list[Pending] = (
            (yield from self._read([hand(ops) for ops in there])) if there else []
        )
        for place, ops in enumerate(there):
            some = pages[place : place + 1]
            # one outbox is broken, or out of reach
            if not some and len(there) > 1 and self.known.sound(ops.keys):
                some = yield from self._read([hand(ops)])
            for page in some:
                yield from self._empty(ops, page)
        return self.wrong

    def _read(self, ops: Sequence[Op[Pending]]) -> Call[list[Pending]]:
        self.since = dict(self.targets.since)
        return (yield from self._ask(ops))

    def _empty(self, outbox: ShardOps, page: Pending) -> Call[None]:
        at = 0
        left = self.pages
        for _ in range(2 * self.pages):
            if not page.intents and not page.closing and not page.next:
                return
            self.late = False
            come = yield from self._send(page)
            over = yield from self._close(page)
            if not (page.next or come or over or self.late):
                return
            if not self.late:
                left -= 1
                at = max(0, page.next - len(come)) if page.next else 0
            away = yield from self._away()
            pages = yield from self._read([hand(outbox, at, come, over, away)])
            if not (pages and left):
                return
            page = pages[0]

    def _send(self, page: Pending) -> Call[list[tuple[str, str]]]:
        """Send jobs to their shards. Return, for each job that arrived, its name in the outbox and
        in the closing step.

        If the number of shards has changed, shards that take no new jobs are asked first. Such a
        shard may have accepted the job before it was sealed. Once it says that it did not, it never
        will.
        """
        come: list[tuple[str, str]] = []
        left = [(intent, self.known.way(intent.check)) for intent in page.intents]
        while left:
            there: dict[Target, list[tuple[Intent, list[int]]]] = defaultdict(list)
            for intent, way in left:
                there[intent.queue, way[0]].append((intent, way[1:]))
            left = list[tuple[Intent, list[int]]]()
            for target, some in there.items():
                ops = self.known.at(target[1]).of(target[0])
                refused = yield from self._deliver(ops, target, [intent for intent, _ in some])
                if refused is None:
                    continue
                come += [
                    (one.name, one.closing(target[1]))
                    for at, (one, _) in enumerate(some)
                    if at not in refused
                ]
                left += [some[at] for at in sorted(refused) if some[at][1]]
                if not all(some[at][1] for at in refused) and target[1] not in self.known.sealed:
                    self.known.sealed.add(target[1])
                    yield from self.known.look()
                    self.late = True  # the page is read again
        return come

    def _deliver(
        self, ops: ShardOps, target: Target, intents: Sequence[Intent]
    ) -> Call[frozenset[int] | None]:
        """Send jobs to a shard. Return the positions of the jobs that it refused. Return `None` if
        the other jobs are not surely stored, also on a replica if the node has one.
        """
        targets = self.targets
        number = target[1]
        while True:
            waits = DurabilityWait(_REPLICATED) if number in targets.replicated else None
            op = accept(ops, self.since.get(target, 0), intents)
            answered: list[Accepted] = yield from self._ask([evolve(op, durability=waits)], number)
            if not answered:
                return None
            answer = answered[0]
            targets.since[target] = answer.now
            if not answer.taken:
                self.late = True
                return None
            if answer.replicas <= 0:
                targets.replicated.discard(number)
                now = yield from Now()
                waits_on = (
                    answer.replicas < 0 and now - targets.alone.setdefault(number, now) < ALONE_S
                )
                return None if waits_on else answer.refused
            targets.alone.pop(number, None)
            if waits is not None:
                return answer.refused if (waits.replicas or 0) >= 1 and not waits.reason else None
            # send again: a job may leave the outbox only if a replica has it
            targets.replicated.add(number)

    def _close(self, page: Pending) -> Call[list[str]]:
        there: dict[Target, list[str]] = defaultdict(list)
        over: list[str] = []
        for name in page.closing:
            target = closing_target(name)
            if target is None or target[1] not in self.known.now.by_number:
                over.append(name)  # a foreign name, or one of a removed shard
            else:
                there[target].append(name)
        for target, names in there.items():
            op = close(
                self.known.at(target[1]).of(target[0]), [name.rpartition(" ")[2] for name in names]
            )
            if (yield from self._ask([op], target[1])):
                over += names
        return over

    def _away(self) -> Call[list[ShardRow]]:
        now = yield from Now()
        for number, until in list(self.targets.avoided.items()):
            if until <= now:
                self.targets.avoided.pop(number, None)
        parts = self.known.table.shards
        avoided = self.targets.avoided
        return [part for part in parts if part.number in avoided or not self._sound(part.number)]

    def _sound(self, number: int) -> bool:
        return self.known.sound(self.known.at(number).keys)

    def _ask(self, ops: Sequence[Op[Any]], number: int | None = None) -> Call[list[Any]]:
        now = yield from Now()
        if number is not None and self.targets.avoided.get(number, now) > now:
            return []
        if number is not None and not self._sound(number):
            self.wrong.append(f"shard {number}: its node does not answer")
            return []
        try:
            return cast("list[Any]", (yield Send(ops, WITHIN_S)))
        except NotDurable as error:
            return list(error.answers)
        except Exception as error:  # after any error, the jobs are safe in their outbox
            self.wrong.append(describe_error(error))
            # otherwise its node is known to be silent
            if number is not None and self._sound(number):
                took = (yield from Now()) - now
                refused = getattr(error, "outcome", "") == "refused"
                self.targets.avoided[number] = now + (3 * took if refused else SILENT_S)
            return []
