"""The panes of all queues, with their table, and with the facts that need attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import BindingType

from headrace.console.groups import LISTED, Group, grouped, prefix
from headrace.console.programs import programs
from headrace.console.texts import chart, counted, memory, rate, short, took
from headrace.console.top.acts import ALL_KEYS, QUEUE_BINDINGS, QUEUE_KEYS, QueueTable
from headrace.console.top.letters import GroupsPane
from headrace.console.top.pane import Column, Key, Pane, Row
from headrace.console.top.queue import QueuePane, ended, state_of
from headrace.inspect import Attention, Overview


def _needs(number: int, more: str = "") -> str:
    return " ".join(
        filter(None, (str(number), more, f"need{'s' if number == 1 else ''} attention"))
    )


def _attention_style(one: Attention) -> str:
    return "bold red" if one.bad else "bold yellow"


def _lines(facts: Sequence[Attention]) -> list[tuple[Attention, str, int]]:
    """Return a line for each fact, or for many facts of one kind. It is the first of them, words
    about all if they are many, and their number.
    """
    kinds: dict[tuple[str, bool], list[Attention]] = {}
    for one in facts:
        kinds.setdefault((one.kind, one.bad), []).append(one)
    lines: list[tuple[Attention, str, int]] = []
    for (kind, _), some in kinds.items():
        if len(some) > LISTED:
            lines.append((some[0], f"{kind}: {len(some)} queues, 4 shows all", len(some)))
        else:
            lines += [(one, "", 1) for one in some]
    return lines


class QueuesPane(QueueTable):
    BINDINGS: ClassVar[list[BindingType]] = [*QUEUE_BINDINGS]
    KEYS = f"""\
{ALL_KEYS}
{QUEUE_KEYS}"""
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("queue", flexible=1),
        Column("waiting", 7, right=True),
        Column("runs", 5, right=True),
        Column("later", 5, right=True),
        Column("dead", 5, right=True),
        Column("in/s", 5, right=True),
        Column("done/s", 6, right=True),
        Column("of late", 8),  # cells of the chart
        Column("oldest", 7, right=True),
        Column("", 7),
    )

    def __init__(self, group: str = "") -> None:
        super().__init__()
        self.group = group
        self.heading = f"queues of {group}" if group else "queues"

    async def read(self) -> None:
        view = await self.top.inspector.overview()
        self._views = {queue.name: queue for queue in view.queues}
        found = programs(view.workers)
        alive = sum(program.alive for program in found)
        bad = sum(not queue.balanced for queue in view.queues)
        law = f"✗ {bad} out of balance" if bad else "✓ balanced"
        more = "" if view.whole else " (still looking)"
        broken = f" · {len(view.broken)} can't be read" if view.broken else ""
        number = counted(len(view.queues), "queue")
        server = view.server
        full = f" · {memory(server.memory, server.maxmemory)}" if server is not None else ""
        unread = [Row((), (name, *[""] * 8, "error"), ((9, "bold red"),)) for name in view.broken]
        first = f"{number}{more}{broken} · {alive} of {len(found)} workers alive · {law}{full}"
        some = [one for one in view.queues if self.group in ("", prefix(one.name))]
        activity = await self.top.inspector.activity([one.name for one in some])
        head: list[str | Text] = [first, *self._totals(view)]
        if self.top.size.height >= 24:
            head += ended(activity, self.top.size.width - 24)
        head += self._attention(view.attention)
        rows = grouped(some, whole=bool(self.group or self.filter))
        self.fill(view.now, head, [*map(self._row, rows), *unread])

    def _totals(self, view: Overview) -> Iterator[str]:
        if self.top.size.height < 16:
            return
        sums = view.totals
        states = {
            "waiting": sums.waiting,
            "running": sums.running,
            "later": sums.later,
            "dead": sums.dead,
        }
        numbers = "  ".join(f"{short(number)} {name}" for name, number in states.items())
        yield f"{numbers} · in {rate(sums.enqueued_rate)}/s · done {rate(sums.completed_rate)}/s"

    def _attention(self, facts: Sequence[Attention]) -> Iterator[Text]:
        room = min(5, max(1, self.top.size.height // 3 - 4))
        lines = _lines(facts) if len(facts) > room else [(one, "", 1) for one in facts]
        shown = lines if len(lines) <= room else lines[: room - 1]
        for one, words, _ in shown:
            name = f"{one.queue}: " if one.queue and not words else ""
            yield Text(
                f"{'✗' if one.bad else '!'} {name}{words or one.text}",
                _attention_style(one),
                no_wrap=True,
            )
        left = sum(number for _, _, number in lines[len(shown) :])
        if left:
            more = _needs(left, "more" if shown else "")
            yield Text(
                f"{'✗' if any(one.bad for one in facts) else '!'} {more}: 4 shows all",
                "bold",
                no_wrap=True,
            )

    def _row(self, group: Group) -> Row:
        sums = group.totals
        queue = group.queue
        state, style = ("", "") if queue is None else state_of(queue)
        parts = "" if queue is not None else f" ({len(group.queues)})"
        if queue is not None and queue.shards:
            parts = f" ({len(queue.shards)} shards)"
        trail = [] if queue is None else [done for _, done in queue.trail]
        numbers = sums.waiting, sums.running, sums.later, sums.dead
        texts = (
            group.name + parts,
            *map(short, numbers),
            rate(sums.enqueued_rate),
            rate(sums.completed_rate),
            chart(trail, 8),
            took(sums.lag, narrow=True) if sums.lag else "",
            state,
        )
        rates = [one or 0.0 for one in (sums.enqueued_rate, sums.completed_rate)]
        values: tuple[float | str, ...] = (group.name, *numbers, *rates, rates[1], sums.lag, state)
        return Row((group.name,), texts, ((9, style),) if style else (), values)

    def _set_filter(self, text: str) -> None:
        super()._set_filter(text)
        self.top.again()  # it looks into groups

    def chosen(self, key: Key) -> None:
        if key:
            of_group = key[0] not in self._views
            self.top.push_screen(QueuesPane(prefix(key[0])) if of_group else QueuePane(key[0]))


class AttentionPane(Pane):
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("", 1),
        Column("queue", flexible=1),
        Column("", 12),
        Column("needs attention", flexible=3),
    )
    KEYS = "enter   open the queue, or its dead letters"
    heading = "attention"

    async def read(self) -> None:
        view = await self.top.inspector.overview()
        facts = view.attention
        rows = [
            Row(
                (one.queue, one.kind),
                ("✗" if one.bad else "!", one.queue, one.kind, one.text),
                ((0, _attention_style(one)),),
            )
            for one in facts
        ]
        self.fill(view.now, [_needs(len(facts)) if facts else "✓ Nothing needs attention."], rows)

    def chosen(self, key: Key) -> None:
        queue, kind = key
        if queue and kind != "unreadable":
            self.top.push_screen(GroupsPane(queue) if kind == "dead" else QueuePane(queue))
