"""The three panes that one begins with: queues, workers, dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType

from headrace._model.views import QueueView, one_line
from headrace._ui.texts import clock, counted, from_now, jobs, rate, span
from headrace._ui.top.cells import Column, chart, short
from headrace._ui.top.pane import Key, Pane, PendingAction, Row

CHART = 8  # cells of the chart in a row


def state_of(queue: QueueView) -> tuple[str, str]:
    """Return the state of a queue in a word, and its style."""
    if not queue.balanced:
        return ("missing" if queue.counts.lost > 0 else "surplus"), "bold red"
    return ("paused", "bold yellow") if queue.paused else ("", "")


def queue_action(action: str, queue: QueueView) -> PendingAction | None:
    """Return the actions for a whole queue."""
    name, counts = queue.name, queue.counts
    dead = counted(counts.dead, "dead letter")
    match action:
        case "pause":
            return PendingAction("resume" if queue.paused else "pause", name, (), "")
        case "purge":
            number = counts.waiting + counts.parked + counts.delayed
            return PendingAction(action, name, (), f"Purge {name}: remove {jobs(number)} that wait for good?")
        case "redrive" if counts.dead:
            return PendingAction(action, name, (), f"Redrive {name}: send {dead} back to the queue?")
        case "purge_dead" if counts.dead:
            return PendingAction(action, name, (), f"Remove {dead} of {name} for good?")
        case "delete":
            asked = f"Delete {name}, with {jobs(counts.present)} in it, running ones too?"
            return PendingAction(action, name, (), asked, typed=name)
        case _:
            return None


QUEUE_BINDINGS: Sequence[BindingType] = (
    ("p", "act('pause')", "Pause"), ("P", "act('purge')", "Purge"), ("R", "act('redrive')", "Redrive"),
    ("X", "act('purge_dead')", "Remove dead letters"), ("D", "act('delete')", "Delete"),
)  # fmt: skip
QUEUE_KEYS = """\
p       pause the queue, or resume it
P       purge it: remove the jobs that wait
R       redrive its dead letters
X       remove its dead letters for good
D       delete it: asks for its name"""


class QueuesPane(Pane):
    """All queues."""

    BINDINGS: ClassVar[list[BindingType]] = [*QUEUE_BINDINGS]
    KEYS = QUEUE_KEYS
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("queue", flexible=1), Column("waiting", 7, right=True), Column("runs", 5, right=True),
        Column("delayed", 7, right=True), Column("dead", 5, right=True), Column("in/s", 5, right=True),
        Column("done/s", 6, right=True), Column("of late", CHART), Column("oldest", 7, right=True), Column("", 7),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._views: dict[str, QueueView] = {}

    def heading(self) -> str:
        """Return its name."""
        return "· queues"

    async def read(self) -> None:
        """Read the overview."""
        view = await self.top.look.overview()
        self._views = {one.name: one for one in view.queues}
        self.retitle(clock(view.now) if view.now else "")
        alive = sum(one.alive for one in view.workers)
        bad = sum(not one.balanced for one in view.queues)
        law = f"✗ {bad} out of balance" if bad else "✓ balanced"
        more = "" if view.whole else " (still looking)"
        broken = f" · {len(view.broken)} can't be read" if view.broken else ""
        self.set_head(
            f"{counted(len(view.queues), 'queue')}{more}{broken} · {alive} of {len(view.workers)} workers alive · {law}"
        )
        unread = [Row((), (name, *[""] * 8, "error"), ((9, "bold red"),)) for name in view.broken]
        self.set_rows([self._row(one) for one in view.queues] + unread)

    def _row(self, one: QueueView) -> Row:
        c, (state, style) = one.counts, state_of(one)
        shards = f" ({len(one.shards)} shards)" if one.shards else ""
        texts = (
            one.name + shards, short(c.waiting + c.parked), short(c.leased), short(c.delayed), short(c.dead),
            rate(one.rates.get("enqueued")), rate(one.rates.get("completed")),
            chart([pair[1] for pair in one.trail], CHART), span(one.lag) if one.lag else "", state,
        )  # fmt: skip
        return Row((one.name,), texts, ((9, style),) if style else ())

    def chosen(self, key: Key) -> None:
        """Open the queue."""
        if key:
            self.top.open_queue(key[0])

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the actions for the queue."""
        queue = self._views.get(key[0]) if key else None
        return queue_action(action, queue) if queue is not None else None


class WorkersPane(Pane):
    """The workers of all queues."""

    BINDINGS: ClassVar[list[BindingType]] = [("F", "act('fail_worker')", "Fail")]
    KEYS = "F       fail the worker: declare it dead in this queue"
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("worker", flexible=2), Column("queue", flexible=1), Column("alive", 5), Column("since", 12),
        Column("leased", 6, right=True),
    )  # fmt: skip

    def heading(self) -> str:
        """Return its name."""
        return "· workers"

    async def read(self) -> None:
        """Read the overview."""
        view = await self.top.look.overview()
        self.retitle(clock(view.now) if view.now else "")
        alive = sum(one.alive for one in view.workers)
        self.set_head(f"{alive} of {len(view.workers)} workers alive, one a queue")
        self.set_rows([
            Row(
                (one.queue, one.name),
                (
                    one_line(one.name), one.queue, "yes" if one.alive else "NO",
                    from_now(one.since or None, view.now), short(one.leased),
                ),
                () if one.alive else ((2, "bold red"),),
            )
            for one in view.workers
        ])  # fmt: skip

    def chosen(self, key: Key) -> None:
        """Open the worker."""
        self.top.open_worker(*key)

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the actions for the worker."""
        if key is None:
            return None
        question = f"Declare {one_line(key[1])} dead in {key[0]}? What it has leased goes to the front."
        return PendingAction(action, key[0], (("worker", key[1]),), question)


class DeathsPane(Pane):
    """The queues that have dead letters."""

    BINDINGS: ClassVar[list[BindingType]] = [*QUEUE_BINDINGS[2:4]]
    KEYS = "\n".join(QUEUE_KEYS.splitlines()[2:4])
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("queue", flexible=1), Column("dead letters", 12, right=True), Column("trimmed", 9, right=True),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._views: dict[str, QueueView] = {}

    def heading(self) -> str:
        """Return its name."""
        return "· dead letters"

    async def read(self) -> None:
        """Read the overview."""
        view = await self.top.look.overview()
        self._views = {one.name: one for one in view.queues if one.counts.dead}
        self.retitle(clock(view.now) if view.now else "")
        number = sum(one.counts.dead for one in view.queues)
        self.set_head(f"{counted(number, 'dead letter')} in {counted(len(self._views), 'queue')}")
        rows = sorted(self._views.values(), key=lambda one: (-one.counts.dead, one.name))
        self.set_rows([Row((q.name,), (q.name, f"{q.counts.dead:,}", short(q.counts.dead_trimmed))) for q in rows])

    def chosen(self, key: Key) -> None:
        """Open its dead letters by reason."""
        self.top.open_groups(key[0])

    def pending(self, action: str, key: Key | None) -> PendingAction | None:
        """Return the actions for its dead letters."""
        return queue_action(action, self._views[key[0]]) if key and key[0] in self._views else None
