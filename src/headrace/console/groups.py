"""The rows of a list of queues, in which many queues of one prefix are one row."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attrs import frozen

from headrace.inspect import QueueView, Totals

PREFIX = re.compile(r"[A-Za-z0-9]+")
LISTED = 3  # facts of a kind that are shown one by one


@frozen
class Group:
    name: str
    queues: Sequence[QueueView]
    totals: Totals

    @classmethod
    def of(cls, name: str, queues: Sequence[QueueView]) -> Group:
        return cls(name, queues, Totals.of(queues))

    @property
    def queue(self) -> QueueView | None:
        return self.queues[0] if self.name == self.queues[0].name else None

    @property
    def prefix(self) -> str:
        return prefix(self.queues[0].name)

    @property
    def workers(self) -> int:
        return self.totals.workers if self.queue is None else self.queue.alive


def prefix(name: str) -> str:
    found = PREFIX.match(name)
    return found[0] if found else ""


def grouped(queues: Sequence[QueueView], *, whole: bool) -> list[Group]:
    """Make the rows of *queues*. Many queues of one prefix are one row, unless the list is to be
    *whole*.
    """
    groups: dict[str, list[QueueView]] = {}
    for queue in queues:
        groups.setdefault(prefix(queue.name), []).append(queue)
    rows: list[Group] = []
    for name, some in groups.items():
        if whole or len(queues) <= 30 or len(some) < 4 or not name:
            rows += [Group.of(queue.name, [queue]) for queue in some]
        else:
            rows.append(Group.of(f"{name}…", some))
    return rows
