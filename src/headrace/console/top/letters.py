"""The panes of dead letters, for the queues that have some, and for the letters of one queue or of
all by reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from headrace.console.texts import counted, from_now, short
from headrace.console.top.acts import ALL_KEYS, DEAD_BINDINGS, DEAD_KEYS, QueueTable
from headrace.console.top.job import JobPane
from headrace.console.top.pane import Column, Key, Pane, PendingAction, Row
from headrace.inspect import DeadGroup, DeadPage
from headrace.platform import cause_first


class DeathsPane(QueueTable):
    BINDINGS: ClassVar[list[BindingType]] = [*DEAD_BINDINGS]
    KEYS = f"""\
{ALL_KEYS}
{DEAD_KEYS}"""
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("queue", flexible=1),
        Column("dead letters", 12, right=True),
        Column("trimmed", 9, right=True),
    )
    heading = "dead letters"

    async def read(self) -> None:
        view = await self.top.inspector.overview()
        self._views = {queue.name: queue for queue in view.queues if queue.counts.dead}
        number = sum(queue.counts.dead for queue in view.queues)
        queues = sorted(self._views.values(), key=lambda queue: (-queue.counts.dead, queue.name))
        self.fill(
            view.now,
            [f"{counted(number, 'dead letter')} in {counted(len(queues), 'queue')}"],
            [
                Row(
                    (queue.name,),
                    (queue.name, f"{queue.counts.dead:,}", short(queue.counts.dead_trimmed)),
                    values=(queue.name, queue.counts.dead, queue.counts.dead_trimmed),
                )
                for queue in queues
            ],
        )

    def chosen(self, key: Key) -> None:
        self.top.push_screen(GroupsPane(key[0]))


class GroupTable(Pane):
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("number", 7, right=True),
        Column("in 1 h", 6, right=True),
        Column("in 1 d", 6, right=True),
        Column("last", 10, right=True),
        Column("kind", flexible=2),
        Column("reason", flexible=5),
    )

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[str, DeadGroup] = {}

    def show(self, page: DeadPage, now: float) -> None:
        self._groups = {group.key: group for group in page.groups}
        more = "" if page.seen == page.all else f", the newest {page.seen:,} of which are grouped"
        rows = [self._row(group, now) for group in page.groups]
        self.fill(now, [f"{counted(page.all, 'dead letter')}{more}, by reason and kind"], rows)

    @staticmethod
    def _row(group: DeadGroup, now: float) -> Row:
        numbers = (group.number, group.hour, group.day)
        words = (group.kind or "", cause_first(group.reason))
        texts = (*map(short, numbers), from_now(group.last, now, narrow=True), *words)
        return Row((group.key,), texts, values=(*numbers, group.last, *words))

    def chosen(self, key: Key) -> None:
        self.top.push_screen(JobPane(*self._groups[key[0]].examples[0]))


class AllGroupsPane(GroupTable):
    KEYS = "enter   open the newest dead letter"
    heading = "all dead letters"

    async def read(self) -> None:
        view = await self.top.inspector.overview()
        page = await self.top.inspector.deaths(
            [queue.name for queue in view.queues if queue.counts.dead]
        )
        self.show(page, page.now or view.now)


class GroupsPane(GroupTable):
    BINDINGS: ClassVar[list[BindingType]] = [*DEAD_BINDINGS]
    KEYS = """\
R  X    redrive the dead letters of this reason, remove them for good"""

    def __init__(self, queue: str) -> None:
        super().__init__()
        self.queue = queue
        self.heading = f"{queue} · dead letters"

    async def read(self) -> None:
        page = await self.top.inspector.dead(self.queue)
        self.show(page, page.now)

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        group = self._groups.get(key[0]) if key else None
        if group is None:
            return None
        verb = "Send back to the queue" if action == "redrive" else "Remove for good"
        question = f"{verb} {counted(group.number, 'dead letter')}: {group.reason}"
        return PendingAction(action, self.queue, question, {"group": group.key})
