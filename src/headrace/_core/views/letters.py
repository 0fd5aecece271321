"""Views of dead letters, by reason and kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace._core.effects import Step, send_all
from headrace._core.views.reader import JOBS_SHOWN, LOOKED_AT_MOST, READ_AT_MOST_BYTES, SEARCH_KEPT, Reader
from headrace._model.letters import DeadGroup, DeadPage, common_reason, reason_key
from headrace._model.settings import KIND
from headrace._model.state import JobState
from headrace._model.views import one_line
from headrace._protocol import view_ops
from headrace._protocol.limits import LISTED_PER_SCRIPT
from headrace._protocol.queue_ops import Ops

QUEUES_A_TRIP = 8  # each answers up to 1 MiB
HOUR_S, DAY_S = 3600.0, 86400.0
Groups = dict[str, list[JobState[Any]]]


class LetterViews(Reader):
    """Views of dead letters, by reason and kind."""

    def dead(self, name: str) -> Step[DeadPage]:
        """Group the dead letters of a queue."""
        return self.deaths([name], queue=name)

    def deaths(self, names: Sequence[str], key: str = "", queue: str = "") -> Step[DeadPage]:
        """Group the dead letters of some queues. With *key*, return only that group, with its letters."""
        for name in names:
            self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Step[DeadPage]:
            parts = yield from self._parts(names)
            groups, seen, now = yield from _grouped(parts)
            counts = (yield from send_all([ops.counts() for ops in parts])) if parts else []
            shown = [self._group(name, states, now) for name, states in groups.items()]
            shown.sort(key=lambda one: (-one.last, one.key))
            page = DeadPage(now, queue, tuple(shown), seen, max(seen, sum(one.dead for one in counts)))
            if not key:
                return page
            letters = groups.get(key, [])[:LISTED_PER_SCRIPT]
            return page.only(key, tuple(self.showing.job(one, now=now) for one in letters))

        fresh = self.fresh * SEARCH_KEPT if len(names) > QUEUES_A_TRIP else self.fresh
        return (yield from self.kept(("dead", queue, *names, key), build, fresh))

    def dead_ids(self, name: str, key: str) -> Step[list[str]]:
        """Read the ids of the dead letters of one group, the oldest first, as far as `dead` looks."""
        groups, _, _ = yield from _grouped((yield from self._parts([name])))
        return [state.job.id for state in reversed(groups.get(key, ()))]

    def _parts(self, names: Sequence[str]) -> Step[list[Ops]]:
        parts = yield from self._ops_factory.levelled(list(names))
        return [ops for name in names for ops in parts[name]]

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
            sum(now - at < DAY_S for at in moments),
            tuple(sorted(queues.items(), key=lambda one: (-one[1], one[0]))),
            tuple((str(state.job.queue), state.job.id) for state in states[:JOBS_SHOWN]),
        )


def _grouped(parts: Sequence[Ops]) -> Step[tuple[Groups, int, float]]:
    """Read the newest dead letters of all *parts*, an equal share of each at first. Return the groups by key, each with
    its letters, the newest first; the number of letters; and the server's time.
    """
    found: list[JobState[Any]] = []
    cursors = dict.fromkeys(range(len(parts)), "")
    size, now = 0, 0.0
    while cursors and len(found) < LOOKED_AT_MOST and size < READ_AT_MOST_BYTES:
        share = max(1, min(LISTED_PER_SCRIPT, (LOOKED_AT_MOST - len(found)) // len(cursors)))
        for at in range(0, len(cursors), QUEUES_A_TRIP):
            some = list(cursors)[at : at + QUEUES_A_TRIP]
            asked = [view_ops.weighed(parts[one], "dead", cursors[one], share, newest=True) for one in some]
            for one, (states, cursor, now, read) in zip(some, (yield from send_all(asked)), strict=True):  # noqa: B007
                found += states
                size += read
                cursors[one] = cursor
            if len(found) >= LOOKED_AT_MOST or size >= READ_AT_MOST_BYTES:
                break
        cursors = {one: cursor for one, cursor in cursors.items() if cursor}
    found.sort(key=lambda one: -(one.since or 0.0))
    return _by_key(found), len(found), now


def _by_key(found: Sequence[JobState[Any]]) -> Groups:
    alike: dict[tuple[str, str], list[JobState[Any]]] = {}
    for state in found:
        alike.setdefault((common_reason(state.reason or ""), state.job.headers.get(KIND, "")), []).append(state)
    groups: Groups = {}
    for (_, kind), states in alike.items():
        groups[reason_key(states[0].reason or "", kind)] = states
    return groups
