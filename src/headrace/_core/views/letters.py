"""Views of dead letters, by reason."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from headrace._core.effects import Step, send, send_all
from headrace._core.views.reader import JOBS_SHOWN, Reader
from headrace._model.state import JobState
from headrace._model.views import (
    DeadGroup,
    DeadPage,
    one_line,
)
from headrace._protocol import view_ops
from headrace._protocol.limits import LISTED_PER_SCRIPT
from headrace._protocol.queue_ops import Ops

DEAD_PAGES = 10  # pages of 200 dead letters to group


def reason_key(reason: str) -> str:
    """Return the name of the group of dead letters with this *reason*."""
    return hashlib.sha256(_common(reason).encode("utf-8", "replace")).hexdigest()[:16]


def _common(reason: str) -> str:
    """Return the part that the reasons of one cause share: the first line, without numbers."""
    first = reason.strip().partition("\n")[0][:300]
    return re.sub(r"0x[0-9a-f]+|\d+", "#", first)


class LetterViews(Reader):
    """Views of dead letters, by reason."""

    def dead(self, name: str) -> Step[DeadPage]:
        """Group the dead letters of a queue by reason."""
        self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Step[DeadPage]:
            parts = yield from self._of(name)
            groups, seen, now = yield from self._grouped(parts)
            counts = yield from send_all([ops.counts() for ops in parts])
            shown = [self._group(key, states) for key, states in groups.items()]
            shown.sort(key=lambda one: (-one.number, one.reason))
            return DeadPage(now, name, tuple(shown), seen, max(seen, sum(one.dead for one in counts)))

        return (yield from self.kept(("dead", name), build))

    def dead_ids(self, name: str, key: str) -> Step[list[str]]:
        """Read the ids of the dead letters of one group, as far as `dead` looks."""
        groups, _, _ = yield from self._grouped((yield from self._of(name)))
        return [state.job.id for state in groups.get(key, ())]

    def _grouped(self, parts: Sequence[Ops]) -> Step[tuple[dict[str, list[JobState[Any]]], int, float]]:
        groups: dict[str, list[JobState[Any]]] = {}
        seen, now = 0, 0.0
        for number, ops in enumerate(parts):
            cursor, most = "", (DEAD_PAGES * LISTED_PER_SCRIPT - seen) // (len(parts) - number)  # an equal share
            for _ in range(DEAD_PAGES):
                states, cursor, now = yield from send(view_ops.page(ops, "dead", cursor, min(most, LISTED_PER_SCRIPT)))
                seen, most = seen + len(states), most - len(states)
                for state in states:
                    groups.setdefault(reason_key(state.reason or ""), []).append(state)
                if not cursor or most <= 0:
                    break
        return groups, seen, now

    def _group(self, key: str, states: list[JobState[Any]]) -> DeadGroup:
        moments = [state.since or 0.0 for state in states]
        first = states[0]
        reason = one_line(self.showing.text("reason", first.reason or "", first.job), 300)
        ids = tuple(state.job.id for state in states[:JOBS_SHOWN])
        return DeadGroup(key, reason, len(states), min(moments), max(moments), ids)
