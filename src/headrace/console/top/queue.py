"""The panes of one queue, for its jobs in one state, chosen and sorted by the server, and for its
kinds.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import BindingType

from headrace.console.texts import (
    Refused,
    chart,
    complaint,
    from_now,
    jobs,
    moment,
    percent,
    rate,
    short,
    took,
)
from headrace.console.top.acts import (
    JOB_BINDINGS,
    JOB_KEYS,
    QUEUE_BINDINGS,
    QUEUE_KEYS,
    job_action,
    queue_action,
)
from headrace.console.top.job import JOB_COLUMNS, JobPane, job_row
from headrace.console.top.letters import GroupsPane
from headrace.console.top.pane import Column, Key, Pane, PendingAction, Row
from headrace.inspect import Activity, Ends, JobsPage, QueueView, Share, TrendPoint
from headrace.platform import WORDS, check_choice, one_line

TABS = (*WORDS.states[:-1], "ended", WORDS.states[-1])
CHOICES = ("kind", "reason", "payload", "header", "since", "until")


def _choice_of(text: str, now: float) -> tuple[dict[str, Any], str]:
    """Read a filter of jobs. Return its words `name=value`, and the rest as a text. Raises
    `Refused` or `ValueError`.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        raise Refused(f"{text!r:.60} has a quotation mark that does not end.") from None
    pairs = {
        name: value for name, equals, value in (word.partition("=") for word in words) if equals
    }
    for name in pairs:
        if name not in CHOICES:
            raise Refused(
                f"{name!r:.40} can't be chosen by: give {', '.join(CHOICES)}, or a text without =."
            )
    chosen: dict[str, Any] = {
        name: moment(name, value, now) if name in CHOICES[-2:] else value
        for name, value in pairs.items()
    }
    check_choice(WORDS.states[0], **chosen)
    return chosen, " ".join(word for word in words if "=" not in word)


def state_of(queue: QueueView) -> tuple[str, str]:
    if not queue.balanced:
        lost = queue.counts.lost
        if not lost:
            return "slots", "bold red"
        return "missing" if lost > 0 else "surplus", "bold red"
    return ("paused", "bold yellow") if queue.paused else ("", "")


class QueuePane(Pane):
    BINDINGS: ClassVar[list[BindingType]] = [
        *QUEUE_BINDINGS,
        *JOB_BINDINGS,
        ("s", "state", "State"),
        ("n", "page('next')", "Next page"),
        ("b", "page('first')", "First page"),
        ("g", "groups", "By reason"),
        ("k", "kinds", "By kind"),
    ]
    KEYS = f"""\
s       the next state
n  b    next page, first page
o       the oldest or the newest first: completed and dead jobs
g  k    dead letters by reason; kinds of the jobs that ended
/       also {" ".join(f"{name}=" for name in CHOICES[:4])}
        since=1h until=: the server looks for them
{QUEUE_KEYS}
{JOB_KEYS}"""

    def __init__(self, queue: str) -> None:
        super().__init__()
        self.queue, self.state, self.heading = queue, WORDS.states[0], queue
        self._cursor, self._next, self._order, self._text = "", "", WORDS.orders[1], ""
        self._tabs: Sequence[str] = WORDS.states
        self._shown = self.state
        self._view: QueueView | None = None
        self._now_s = 0.0

    @property
    def columns(self) -> Sequence[Column]:
        return JOB_COLUMNS[self._shown]

    @property
    def sought(self) -> str:
        return self._text

    async def read(self) -> None:
        page = await self.top.inspector.queue(self.queue)
        asked = self.state, self._cursor, self.filter, self._order
        chosen, _ = _choice_of(self.filter, page.now)
        if self.state in WORDS.dated:
            chosen["order"] = self._order
        found = await self.top.inspector.jobs(self.queue, self.state, self._cursor, 100, **chosen)
        if asked != (self.state, self._cursor, self.filter, self._order):
            return  # a key was pressed meanwhile
        has_trends = page.declared.get("trends") == "yes"
        points = (
            (await self.top.inspector.trends(self.queue, "minute", 120)).points
            if has_trends
            else ()
        )
        self._view = page.queue
        self._next = found.cursor
        self._now_s = page.now
        self._tabs = TABS if "history" in page.declared or self.state == "ended" else WORDS.states
        self._shown = self.state
        rows = [job_row(job, page.now, self.state) for job in found.jobs]
        head = [
            *self._head(page.queue),
            *_shares(page.shares),
            *self._two_hours(points),
            *ended(await self.top.inspector.activity([self.queue]), self.top.size.width - 24),
            self._tab_line(found, chosen),
        ]
        self.fill(page.now, head, rows)

    def _head(self, queue: QueueView) -> Iterator[str | Text]:
        counts = queue.counts
        wide = max(10, self.top.size.width - 14)
        numbers = {
            "waiting": counts.waiting,
            "parked": counts.parked,
            "running": counts.leased,
            "delayed": counts.delayed,
            "blocked": counts.blocked,
            "dead": counts.dead,
        }
        state, style = state_of(queue)
        texts = "  ".join(f"{name} {short(number)}" for name, number in numbers.items())
        yield Text(texts) + Text(f"  {state}" if state else "", style=style)
        of = "" if queue.shards else f" of {len(queue.workers)}"
        law = " · ✓ balanced" if queue.balanced else ""
        yield f"oldest {took(queue.lag) if queue.lag else '–'} · {queue.alive}{of} workers alive{law}"
        if not queue.balanced:
            yield Text(f"✗ {queue.law}", style="bold red")
        if queue.shards:
            waiting = (
                f"{shard.number}: {short(shard.counts.waiting + shard.counts.parked)}"
                for shard in queue.shards
            )
            yield Text(
                f"{len(queue.shards)} shards, waiting in each  {'  '.join(waiting)}", no_wrap=True
            )
        yield f"in   {rate(queue.rates.get('enqueued')):>7}/s {chart([enqueued for enqueued, _ in queue.trail], wide)}"
        yield f"done {rate(queue.rates.get('completed')):>7}/s {chart([done for _, done in queue.trail], wide)}"

    def _tab_line(self, found: JobsPage, chosen: Mapping[str, Any]) -> str:
        words = {name: "completed" if name == "ended" else name for name in self._tabs}
        tabs = "  ".join(
            f"[{word}]" if name == self.state else word for name, word in words.items()
        )
        notes = [
            f"{len(found.jobs)} of {found.looked:,} looked at"
            if chosen.keys() - {"order"}
            else f"{len(found.jobs)}"
        ]
        notes += [f"{self._order} first"] if self.state in WORDS.dated else []
        return f"{tabs}  ({', '.join([*notes, *(['n for more'] if found.cursor else [])])})"

    def _two_hours(self, points: Sequence[TrendPoint]) -> list[str]:
        wide = max(10, self.top.size.width - 24)
        lines = {
            "waiting": [float(one.waiting) for one in points],
            "dead": [float(one.dead) for one in points],
        }
        return [
            f"2 h {name:<7} {short(int(line[-1])):>6} {chart(line, wide)}"
            for name, line in lines.items()
            if line
        ]

    def chosen(self, key: Key) -> None:
        self.top.push_screen(JobPane(self.queue, key[0]))

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        if action in ("cancel", "expire"):
            return job_action(action, self.queue, *key) if key else None
        return queue_action(action, self._view)

    def action_state(self) -> None:
        self.state = self._tabs[(self._tabs.index(self.state) + 1) % len(self._tabs)]
        self._cursor = ""
        self.top.again()

    def action_sort(self, step: int) -> None:  # noqa: ARG002 - of the base
        self.report("The server keeps this order. Of completed and dead jobs, o turns it.")

    def action_turn(self) -> None:
        if self.state not in WORDS.dated:
            self.action_sort(0)
            return
        self._order = WORDS.orders[self._order == WORDS.orders[0]]
        self._cursor = ""
        self.top.again()

    def _set_filter(self, text: str) -> None:
        try:
            _, self._text = _choice_of(text, self._now_s)
        except ValueError as error:
            self.report(complaint(error), bad=True)
            return
        self._cursor = ""
        super()._set_filter(text)
        self.top.again()

    def action_page(self, which: str) -> None:
        self._cursor = self._next if which == "next" else ""
        self.top.again()

    def action_groups(self) -> None:
        self.top.push_screen(GroupsPane(self.queue))

    def action_kinds(self) -> None:
        self.top.push_screen(KindsPane(self.queue))


class KindsPane(Pane):
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("kind", flexible=1),
        Column("ended", 6, right=True),
        Column("died", 6, right=True),
        Column("ran p50", 8, right=True),
        Column("ran p95", 8, right=True),
        Column("wait p50", 8, right=True),
        Column("wait p95", 8, right=True),
    )

    def __init__(self, queue: str) -> None:
        super().__init__()
        self.queue = queue
        self.heading = f"{queue} · kinds"

    async def read(self) -> None:
        page = await self.top.inspector.kinds(self.queue)
        if not page.kept:
            self.fill(page.now, ["The queue keeps no history: declare it with history=1000, say."])
            return
        rows: list[Row] = []
        for one in page.kinds:
            times = *(one.run or (None, None)), *(one.wait or (None, None))
            texts = (one.kind or "", short(one.number), percent(one.failing), *map(took, times))
            values = (
                one.kind or "",
                one.number,
                one.failing,
                *(-1.0 if time is None else time for time in times),
            )
            rows.append(
                Row((one.kind or "",), texts, ((2, "bold red"),) if one.dead else (), values)
            )
        since = f", the first {from_now(page.since, page.now)}" if page.since is not None else ""
        self.fill(
            page.now, [f"the last {jobs(page.seen)} that were completed or died{since}"], rows
        )


def ended(activity: Activity, wide: int) -> Iterator[Text]:
    ends = {int(point.at) // 60: Ends.of(point.kinds.values()) for point in activity.points}
    if ends:
        whole = Ends.of(ends.values())
        failed = f"  {short(whole.retried)} retried, {short(whole.died)} died"
        minutes = range(min(ends), int(activity.now) // 60 + 1)
        line = [float(ends[one].done) if one in ends else 0.0 for one in minutes]
        bars = chart(line, max(10, wide - len(failed)))
        yield Text(f"2 h done    {short(whole.done):>6} {bars}{failed}", no_wrap=True)


def _shares(shares: Sequence[Share]) -> Iterator[Text]:
    for one in shares[:5]:  # there is little room
        dwell = "–" if one.p95 is None else took(one.p95, narrow=True)
        numbers = (
            f"{short(one.running):>6} running {short(one.waiting):>6} waiting  p95 {dwell:<7} "
        )
        yield Text(numbers + one_line(one.name), no_wrap=True)
