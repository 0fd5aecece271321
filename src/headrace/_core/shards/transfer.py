"""Handing jobs over to other shards, each exactly once, whatever fails between.

A job whose shard is another's is written into the outbox of the shard where it came to be, in the script that decides
so. From there it goes by three steps, which any program may take, at the same time, and again: its shard accepts it,
and keeps its nonce, so that it comes once; the outbox lets it go, and says so; the shard forgets the nonce later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

from attrs import define, evolve, field

from headrace._core.effects import Send, Step, current_time
from headrace._core.shards.map import ShardMap
from headrace._model.durability import Durability
from headrace._model.shards import Part
from headrace._protocol.handing import Accepted, Intent, Pending, Target, accept, close, closing_target, hand
from headrace._protocol.lasting import Lasting
from headrace._protocol.limits import SILENT_S
from headrace._protocol.op import Op
from headrace._protocol.shards import PartOps
from headrace.errors import NotDurable, said

WITHIN_S = 5.0  # seconds for which a shard is asked: others wait meanwhile
ALONE_S = 60.0  # seconds for which a node is waited for that had a replica lately: that one may replace it
PAGES = 100  # of one outbox in a row: then it is another's turn
_REPLICATED = Durability(replicas=1)


@define(eq=False)
class Targets:
    """Knowledge of the shards to which jobs were handed over."""

    since: dict[Target, int] = field(factory=dict[Target, int])  # what time it was there, when it answered last
    replicated: set[int] = field(factory=set[int])  # their nodes have replicas
    alone: dict[int, float] = field(factory=dict[int, float])  # they had, and have none since then
    avoided: dict[int, float] = field(factory=dict[int, float])  # they did not answer: until when


def hand_over(known: ShardMap, outboxes: Sequence[PartOps], targets: Targets, pages: int = PAGES) -> Step[list[str]]:
    """Send what is in some outboxes, as many *pages* of each, and take in what has come; return what went wrong. The
    next call goes on from there, of this program or another.
    """
    return _HandOver(known, outboxes, targets, pages).run()


@define(eq=False)
class _HandOver:
    known: ShardMap
    outboxes: Sequence[PartOps]
    targets: Targets
    pages: int
    wrong: list[str] = field(factory=list[str])
    since: dict[Target, int] = field(factory=dict[Target, int])  # as it was known before the page was read
    late: bool = False  # a shard has told its time only: the page is to be read anew

    def run(self) -> Step[list[str]]:
        there = [ops for ops in self.outboxes if self.known.sound(ops.keys)]
        pages: list[Pending] = (yield from self._read([hand(ops) for ops in there])) if there else []
        for place, ops in enumerate(there):
            some = pages[place : place + 1]
            if not some and len(there) > 1 and self.known.sound(ops.keys):  # one of them is broken, or out of reach
                some = yield from self._read([hand(ops)])
            for page in some:
                yield from self._empty(ops, page)
        return self.wrong

    def _read(self, ops: Sequence[Op[Pending]]) -> Step[list[Pending]]:
        self.since = dict(self.targets.since)
        return (yield from self._ask(ops))

    def _empty(self, outbox: PartOps, page: Pending) -> Step[None]:
        at, left = 0, self.pages
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

    def _send(self, page: Pending) -> Step[list[tuple[str, str]]]:
        """Send jobs to their shards; return the names of jobs that have arrived, here and in closing.

        Where the number of shards has changed, those that take nothing new are asked first: one may have had the job
        before it was sealed, and it never will after it has said that it had not.
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
                come += [(one.name, one.closing(target[1])) for at, (one, _) in enumerate(some) if at not in refused]
                left += [some[at] for at in sorted(refused) if some[at][1]]
                if not all(some[at][1] for at in refused):
                    yield from self._sealed(target[1])
        return come

    def _sealed(self, number: int) -> Step[None]:
        """Take in that a shard is sealed to which jobs were to go: where they go is read anew, and so is the page."""
        if number not in self.known.sealed:
            self.known.sealed.add(number)
            yield from self.known.look()
            self.late = True

    def _deliver(self, ops: PartOps, target: Target, intents: Sequence[Intent]) -> Step[frozenset[int] | None]:
        """Send jobs to a shard. If they are there, and on a replica, where there is one, return the places of those
        that it refused; else `None`.
        """
        targets, number = self.targets, target[1]
        while True:
            waits = Lasting(_REPLICATED) if number in targets.replicated else None
            op = accept(ops, self.since.get(target, 0), intents)
            answered: list[Accepted] = yield from self._ask([evolve(op, lasting=waits)], number)
            if not answered:
                return None
            answer = answered[0]
            targets.since[target] = answer.now
            if not answer.taken:
                self.late = True
                return None
            if answer.replicas <= 0:
                targets.replicated.discard(number)
                now = yield from current_time()
                waits_on = answer.replicas < 0 and now - targets.alone.setdefault(number, now) < ALONE_S
                return None if waits_on else answer.refused
            targets.alone.pop(number, None)
            if waits is not None:
                return answer.refused if (waits.replicas or 0) >= 1 and not waits.reason else None
            targets.replicated.add(number)  # once more, as only what a replica has may leave the outbox

    def _close(self, page: Pending) -> Step[list[str]]:
        """Let shards forget arrived jobs; return the names of finished transfers."""
        there: dict[Target, list[str]] = defaultdict(list)
        over: list[str] = []
        for name in page.closing:
            target = closing_target(name)
            if target is None or target[1] not in self.known.now.parts:
                over.append(name)  # a foreign one, or of a shard that is gone
            else:
                there[target].append(name)
        for target, names in there.items():
            op = close(self.known.at(target[1]).of(target[0]), [name.rpartition(" ")[2] for name in names])
            if (yield from self._ask([op], target[1])):
                over += names
        return over

    def _away(self) -> Step[list[Part]]:
        """List the shards to leave alone now."""
        now = yield from current_time()
        for number, until in list(self.targets.avoided.items()):
            if until <= now:
                self.targets.avoided.pop(number, None)
        parts, avoided = self.known.table.parts, self.targets.avoided
        return [part for part in parts if part.number in avoided or not self._sound(part.number)]

    def _sound(self, number: int) -> bool:
        return self.known.sound(self.known.at(number).keys)

    def _ask(self, ops: Sequence[Op[Any]], number: int | None = None) -> Step[list[Any]]:
        """Send operations, to the shard *number* or to outboxes; return their answers, none if that fails."""
        now = yield from current_time()
        if number is not None and self.targets.avoided.get(number, now) > now:
            return []
        if number is not None and not self._sound(number):
            self.wrong.append(f"shard {number}: its node does not answer")
            return []
        try:
            return cast("list[Any]", (yield Send(ops, WITHIN_S)))
        except NotDurable as error:
            return list(error.answers)
        except Exception as error:  # whatever it is, the jobs are safe in their outbox
            self.wrong.append(said(error))
            if number is not None and self._sound(number):  # else its node is known to be silent
                took = (yield from current_time()) - now
                refused = getattr(error, "outcome", "") == "refused"
                self.targets.avoided[number] = now + (3 * took if refused else SILENT_S)
            return []
