"""Views of dead letters, by reason and kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from headrace._core.effects import Call, Now, send_all
from headrace._core.views.attention import HOUR_S
from headrace._core.views.reader import (
    JOBS_SHOWN,
    LOOKED_AT_MOST,
    READ_AT_MOST_BYTES,
    SEARCH_KEPT,
    Reader,
)
from headrace._model.checks import LEVELS_AT_MOST
from headrace._model.letters import DeadGroup, DeadPage, common_reason, reason_key
from headrace._model.settings import KIND
from headrace._model.state import JobState
from headrace._model.views.texts import one_line
from headrace._protocol import view_ops
from headrace._protocol.limits import LISTED_PER_SCRIPT
from headrace._protocol.queue_ops import Ops

QUEUES_A_TRIP = 8  # each answers up to 1 MiB
ROUNDS = 6  # readings of many queues, ten seconds apart, in which each queue is read at least once
Groups = dict[str, list[JobState[Any]]]


@define(eq=False)
class Pile:
    """The newest dead letters of a shard, read at the moment `at`. `cursor` is where to read on. It
    is '' if these are all, and `None` if nothing was read. `counted` has the moment of the last
    count of its queue, with the dead and the trimmed letters.
    """

    ops: Ops
    at: float
    counted: tuple[float, tuple[int, int]] | None
    states: list[JobState[Any]] = field(factory=list[JobState[Any]])
    cursor: str | None = None
    size: int = 0  # bytes
    number: int = 0  # of all letters there


class LetterViews(Reader):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._piles: dict[str, Pile] = {}  # the last reading of many queues

    def forget(self) -> None:
        super().forget()
        self._piles.clear()

    def dead(self, name: str) -> Call[DeadPage]:
        return self.deaths([name], queue=name)

    def deaths(self, names: Sequence[str], key: str = "", queue: str = "") -> Call[DeadPage]:
        """Group the dead letters of some queues. With *key*, return only that group, with its
        letters."""
        for name in names:
            self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Call[DeadPage]:
            piles, now = yield from self._piles_of(names)
            groups = _by_key(piles)
            seen = sum(len(pile.states) for pile in piles)
            shown = [self._group(name, states, now) for name, states in groups.items()]
            shown.sort(key=lambda one: (-one.last, one.key))
            page = DeadPage(now, queue, tuple(shown), seen, sum(pile.number for pile in piles))
            if not key:
                return page
            letters = groups.get(key, [])[:LISTED_PER_SCRIPT]
            return page.only(key, tuple(self.showing.job(one, now=now) for one in letters))

        fresh = self.fresh * SEARCH_KEPT if len(names) > QUEUES_A_TRIP else self.fresh
        return (yield from self.kept(("dead", queue, *names, key), build, fresh))

    def dead_ids(self, name: str, key: str) -> Call[list[str]]:
        """Read the ids of the dead letters of one group, the oldest first, as far as `dead`
        looks."""
        piles, _ = yield from self._piles_of([name])
        return [state.job.id for state in reversed(_by_key(piles).get(key, ()))]

    def _piles_of(self, names: Sequence[str]) -> Call[tuple[list[Pile], float]]:
        """Read the newest dead letters of some queues. Return them by shard, and the server's time.
        If there are many queues, it reads only some. Their number of letters has changed since the
        last time, or their last reading is the oldest.
        """
        # Dead letters are in no level: with the keys of all, nobody has to ask for the number of
        # levels.
        shards = yield from self._ops_factory.of(names, LEVELS_AT_MOST)
        parts = [ops for name in names for ops in shards[name]]
        at = yield from Now()
        piles = {ops.keys.prefix: Pile(ops, at, self._dead.get(ops.keys.queue)) for ops in parts}
        kept: dict[str, Pile] = {}
        if len(names) > QUEUES_A_TRIP:
            kept = {
                prefix: pile
                for prefix, pile in self._piles.items()
                if self._unchanged(pile, piles.get(prefix))
            }
            for prefix in sorted(kept, key=lambda prefix: kept[prefix].at)[
                : -(-len(parts) // ROUNDS)
            ]:
                del kept[prefix]
        due = [pile for prefix, pile in piles.items() if prefix not in kept]
        now = yield from _fill(due, list(kept.values()))
        piles |= kept
        if len(names) > QUEUES_A_TRIP:
            self._piles = {} if any(pile.cursor is None for pile in piles.values()) else piles
        return list(piles.values()), now

    def _unchanged(self, pile: Pile, new: Pile | None) -> bool:
        if new is None or pile.counted is None or new.counted is None:
            return False
        (_, before) = pile.counted
        (counted, after) = new.counted
        again = SEARCH_KEPT * self.fresh
        late = counted > new.at - again
        recent = new.at - pile.at < (ROUNDS + 1) * again
        return before == after and late and recent

    def _group(self, key: str, states: list[JobState[Any]], now: float) -> DeadGroup:
        moments = [state.since or 0.0 for state in states]
        newest = states[0]
        queues: dict[str, int] = {}
        for state in states:
            name = str(state.job.queue)
            queues[name] = queues.get(name, 0) + 1
        return DeadGroup(
            key,
            one_line(self.showing.text("reason", newest.reason or "", newest.job), 300),
            len(states),
            min(moments),
            max(moments),
            self.showing.kind(newest.job),
            sum(now - at < HOUR_S for at in moments),
            sum(now - at < 24 * HOUR_S for at in moments),
            tuple(sorted(queues.items(), key=lambda one: (-one[1], one[0]))),
            tuple((str(state.job.queue), state.job.id) for state in states[:JOBS_SHOWN]),
        )


def _fill(piles: Sequence[Pile], others: Sequence[Pile]) -> Call[float]:
    """Read the newest dead letters of these shards, an equal share of each at first, as many as the
    *others* leave room for. Return the server's time.
    """
    number = max(1, len(piles) + len(others))
    left = LOOKED_AT_MOST - sum(len(pile.states) for pile in others)
    room = READ_AT_MOST_BYTES - sum(pile.size for pile in others)
    left = max(left, len(piles) * (LOOKED_AT_MOST // number))
    room = max(room, len(piles) * (READ_AT_MOST_BYTES // number))
    unread: list[Pile] = [*piles]
    now = 0.0
    while unread and left > 0 and room > 0:
        share = max(1, min(LISTED_PER_SCRIPT, left // len(unread)))
        for at in range(0, len(unread), QUEUES_A_TRIP):
            some = unread[at : at + QUEUES_A_TRIP]
            asked = [
                view_ops.weighed(pile.ops, "dead", pile.cursor or "", share, newest=True)
                for pile in some
            ]
            answers = yield from send_all(asked)
            for pile, (states, cursor, now, size) in zip(some, answers, strict=True):  # noqa: B007
                pile.states += states
                pile.cursor = cursor
                pile.size = pile.size + size
                left = left - len(states)
                room = room - size
            if left <= 0 or room <= 0:
                break
        unread = [pile for pile in unread if pile.cursor]
    more = [pile for pile in piles if pile.cursor != ""]
    counts = (yield from send_all([view_ops.counts(pile.ops) for pile in more])) if more else []
    for pile in piles:
        pile.number = len(pile.states)
    for pile, one in zip(more, counts, strict=True):
        pile.number = max(pile.number, one.dead)
    return now


def _by_key(piles: Sequence[Pile]) -> Groups:
    alike: dict[tuple[str, str], list[JobState[Any]]] = {}
    for state in sorted(
        (state for pile in piles for state in pile.states), key=lambda one: -(one.since or 0.0)
    ):
        alike.setdefault(
            (common_reason(state.reason or ""), state.job.headers.get(KIND, "")), []
        ).append(state)
    groups: Groups = {}
    for (_, kind), states in alike.items():
        groups[reason_key(states[0].reason or "", kind)] = states
    return groups
