"""The application, which reads the pane in front, and the keys that all panes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, ClassVar, cast

from textual.app import App
from textual.binding import BindingType
from textual.css.query import NoMatches

from headrace.console.actions import Form, act
from headrace.console.texts import FAILURES, complaint, counted
from headrace.console.top.job import JobPane
from headrace.console.top.letters import AllGroupsPane, DeathsPane
from headrace.console.top.pane import Pane, PendingAction, Question
from headrace.console.top.queues import AttentionPane, QueuesPane
from headrace.console.top.workers import WorkersPane
from headrace.inspect import AsyncInspector

KEYS = """\
1 2 3 4 queues, workers, dead letters, what needs attention
enter   open what is under the cursor
escape  end the filter; back
/       show only rows with a text
> < o   sort by the next column, the one before; turn the order
f  t    find a job by its id, in whichever queue; the next namespace
space q hold, and go on; end
Capital letters change what can't be changed back: they ask first.

"""


class Top(App[None]):
    TITLE = "headrace top"
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = "DataTable, VerticalScroll, Input"
    CSS = """
    Screen { background: ansi_default; }
    #title { height: 1; background: $primary-background; }
    #head { height: auto; max-height: 8; padding: 0 0 1 0; }
    JobPane #head { max-height: 100000; }
    DataTable { height: 1fr; scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    #said { height: 1; }
    #keys { height: 1; background: $primary-background; }
    .stale #head, .stale DataTable { text-opacity: 50%; }
    ModalScreen { align: center middle; }
    .asked { width: 76; max-width: 100%; height: auto; border: round $primary; padding: 0 1; background: $surface; }
    .note { color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "End"),
        ("1", "go('queues')", "Queues"),
        ("2", "go('workers')", "Workers"),
        ("3", "go('deaths')", "Dead letters"),
        ("4", "go('attention')", "Attention"),
    ]

    def __init__(
        self,
        inspector: AsyncInspector,
        server: Mapping[str, Any],
        namespace: str,
        where: str,
        *,
        every: float,
        read_only: bool = False,
        others: Mapping[str, AsyncInspector] | None = None,
    ) -> None:
        super().__init__()
        self.inspector, self.where, self.read_only = inspector, where, read_only
        self._server, self._namespace, self._every = server, namespace, every
        self._inspectors = {namespace: inspector, **(others or {})}  # by namespace
        self._again = asyncio.Event()
        self._on_hold = False
        self.reads = 0

    def on_mount(self) -> None:
        self.push_screen(QueuesPane())
        self.run_worker(self._follow(), group="follow")

    @property
    def pane(self) -> Pane:
        return cast("Pane", self.screen)

    @property
    def called(self) -> str:
        several = len(self._inspectors) > 1
        return f"headrace · {self._namespace}" if several else "headrace"

    def again(self) -> None:
        self._again.set()

    async def _follow(self) -> None:
        while True:
            self._again.clear()
            pane = self.screen
            if isinstance(pane, Pane) and pane.laid_out and not self._on_hold:
                await self._read(pane)
            # another window has the focus
            pause = self._every if self.app_focus else self._every * 5
            with suppress(TimeoutError):
                await asyncio.wait_for(self._again.wait(), pause)

    async def _read(self, pane: Pane) -> None:
        trouble = ""
        try:
            await pane.read()
        except NoMatches:  # the pane is being removed
            return
        except FAILURES as error:
            trouble = complaint(error)
        if bool(trouble) != pane.failing and pane.is_attached:
            pane.fail(trouble)
        self.reads += 1

    def act(self, pending: PendingAction, pane: Pane) -> None:
        self.run_worker(self._act(pending, pane), group="actions")

    async def _act(self, pending: PendingAction, pane: Pane) -> None:
        # the user has answered the question
        form = Form({"confirm": pending.queue, **pending.fields})
        bad = False
        try:
            _, text, _ = await act(
                self.inspector, self._server, self._namespace, pending.action, pending.queue, form
            )
        except FAILURES as error:
            text = complaint(error)
            bad = True
        if pane.is_attached:
            pane.report(text, bad=bad)
        self.again()

    # -- keys --------------------------------------------------------------------------------------

    def back(self) -> None:
        if len(self.screen_stack) > 2:
            self.pop_screen()

    def action_go(self, where: str) -> None:
        lists: dict[str, Callable[[], Pane]] = {
            "queues": QueuesPane,
            "workers": WorkersPane,
            "deaths": DeathsPane,
            "attention": AttentionPane,
        }
        while len(self.screen_stack) > 2:
            self.pop_screen()
        self.switch_screen(lists[where]())  # pyright: ignore[reportUnknownMemberType]

    def action_groups(self) -> None:
        self.push_screen(AllGroupsPane())

    def action_namespace(self) -> None:
        names = list(self._inspectors)
        if len(names) == 1:
            self.pane.report("There is one namespace: --namespace a,b shows several.")
            return
        self._namespace = names[(names.index(self._namespace) + 1) % len(names)]
        self.inspector = self._inspectors[self._namespace]
        self.action_go("queues")

    def action_hold(self) -> None:
        self._on_hold = not self._on_hold
        self.pane.report("Held: space goes on." if self._on_hold else "")
        self.again()

    def action_find(self) -> None:
        pane = self.pane

        def find(id: str | None) -> None:
            if id:
                self.run_worker(self._find(id.strip(), pane), group="actions")

        pane.ask("Find the job of this id:", find)

    async def _find(self, id: str, pane: Pane) -> None:
        try:
            names = [queue.name for queue in (await self.inspector.overview()).queues]
            found = await self.inspector.find(id, names)
        except FAILURES as error:
            pane.report(complaint(error), bad=True)
            return
        if found:
            self.push_screen(JobPane(found[0], id))
        else:
            pane.report(f"There is none in {counted(len(names), 'queue')}.", bad=True)

    def action_help(self) -> None:
        self.push_screen(Question(f"{KEYS}{self.pane.KEYS}", note="Any key leaves this."))


def run(
    address: str, namespaces: Sequence[str], where: str, *, every: float, read_only: bool
) -> None:
    async def show() -> None:
        async with AsyncExitStack() as stack:
            inspectors: dict[str, AsyncInspector] = {}
            for name in namespaces:
                inspector = AsyncInspector(url=address, namespace=name, fresh=every / 2)
                inspectors[name] = await stack.enter_async_context(inspector)
            first, *_ = inspectors
            top = Top(
                inspectors[first],
                {"url": address},
                first,
                where,
                every=every,
                read_only=read_only,
                others=inspectors,
            )
            await top.run_async()

    asyncio.run(show())
