"""The application: the pane in front, when it is read, and the keys that all panes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import redis
from textual.app import App
from textual.binding import BindingType
from textual.css.query import NoMatches

from headrace._api.aio.inspector import AsyncInspector
from headrace._ui.actions import Form, Refused, act
from headrace._ui.texts import complaint, counted
from headrace._ui.top.asking import Help, Prompt
from headrace._ui.top.details import GroupsPane, JobPane, QueuePane, WorkerPane
from headrace._ui.top.lists import DeathsPane, QueuesPane, WorkersPane
from headrace._ui.top.pane import Pane, PendingAction
from headrace.errors import HeadraceError

EVERY_S = 2.0  # seconds between two looks
BEHIND = 5.0  # times as long, while another window has the focus
KEYS = """\
1 2 3   queues, workers, dead letters
enter   open what is under the cursor
escape  back
/       show only rows with a text
f       find a job by its id, in whichever queue
space   hold, and go on
q       end

Capital letters change what can't be changed back: they ask first.
"""


class Top(App[None]):
    """`headrace top`: one reader, for the pane in front only, one look at a time."""

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
    ModalScreen { align: center middle; }
    .asked { width: 76; max-width: 100%; height: auto; border: round $primary; padding: 0 1; background: $surface; }
    .note { color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "End"), ("question_mark", "help", "Help"), ("slash", "filter", "Filter"),
        ("f", "find", "Find"), ("space", "hold", "Hold"), ("1", "go('queues')", "Queues"),
        ("2", "go('workers')", "Workers"), ("3", "go('deaths')", "Dead letters"),
    ]  # fmt: skip

    def __init__(
        self, look: AsyncInspector, server: Mapping[str, Any], namespace: str, where: str,
        *, read_only: bool = False, every: float = EVERY_S,
    ) -> None:  # fmt: skip
        super().__init__()
        self.look, self.where, self.read_only = look, where, read_only
        self._server, self._namespace, self._every = server, namespace, every
        self._again = asyncio.Event()
        self._held = False
        self.looks = 0

    def on_mount(self) -> None:
        """Begin with the queues."""
        self.push_screen(QueuesPane())
        self.run_worker(self._follow(), group="follow")

    def again(self) -> None:
        """Read the pane in front now."""
        self._again.set()

    async def _follow(self) -> None:
        while True:
            self._again.clear()
            pane = self.screen
            if isinstance(pane, Pane) and pane.laid_out and not self._held:
                await self._read(pane)
            pause = self._every if self.app_focus else self._every * BEHIND
            with suppress(TimeoutError):
                await asyncio.wait_for(self._again.wait(), pause)

    async def _read(self, pane: Pane) -> None:
        try:
            await pane.read()
            said = ""
        except NoMatches:  # the pane is on its way out
            return
        except (redis.RedisError, OSError, HeadraceError, ValueError) as error:
            said = complaint(error)
        if bool(said) != pane.failing and pane.is_attached:
            pane.failing = bool(said)
            pane.tell(said, bad=True)
        self.looks += 1

    # -- doing -----------------------------------------------------------------------------------------

    def do(self, pending: PendingAction, pane: Pane) -> None:
        """Take an action, and show its result in *pane*."""
        self.run_worker(self._do(pending, pane), group="actions")

    async def _do(self, pending: PendingAction, pane: Pane) -> None:
        try:
            form = Form({"confirm": pending.queue, **dict(pending.fields)})  # the question was answered
            _, text, _ = await act(self.look, self._server, self._namespace, pending.action, pending.queue, form)
            bad = False
        except Refused as error:
            text, bad = str(error), True
        except (redis.RedisError, OSError, HeadraceError, ValueError) as error:
            text, bad = complaint(error), True
        if pane.is_attached:
            pane.tell(text, bad=bad)
        self.again()

    # -- where to go -----------------------------------------------------------------------------------

    def _open(self, pane: Pane) -> None:
        self.push_screen(pane)

    def open_queue(self, name: str, state: str = "waiting") -> None:
        """Open a queue."""
        self._open(QueuePane(name, state))

    def open_job(self, queue: str, id: str) -> None:
        """Open a job."""
        self._open(JobPane(queue, id))

    def open_worker(self, queue: str, name: str) -> None:
        """Open a worker."""
        self._open(WorkerPane(queue, name))

    def open_groups(self, queue: str) -> None:
        """Open the dead letters of a queue."""
        self._open(GroupsPane(queue))

    def back(self) -> None:
        """Go back to the pane before; the first one stays."""
        if len(self.screen_stack) > 2:
            self.pop_screen()

    def action_go(self, where: str) -> None:
        """Go to one of the three lists."""
        lists: dict[str, Callable[[], Pane]] = {"queues": QueuesPane, "workers": WorkersPane, "deaths": DeathsPane}
        while len(self.screen_stack) > 2:
            self.pop_screen()
        self.switch_screen(lists[where]())  # pyright: ignore[reportUnknownMemberType]

    def action_filter(self) -> None:
        """Ask the pane in front for its filter."""
        if isinstance(self.screen, Pane):
            self.screen.action_filter()

    def action_hold(self) -> None:
        """Read nothing, or go on."""
        self._held = not self._held
        if isinstance(self.screen, Pane):
            self.screen.tell("HeldJob: space goes on." if self._held else "")
        self.again()

    def action_find(self) -> None:
        """Ask for an id."""
        pane = self.screen
        if not isinstance(pane, Pane):
            return

        def sought(id: str | None) -> None:
            if id:
                self.run_worker(self._find(id.strip(), pane), group="actions")

        self.push_screen(Prompt("Find the job of this id:"), sought)

    async def _find(self, id: str, pane: Pane) -> None:
        try:
            names = [one.name for one in (await self.look.overview()).queues]
            found = await self.look.find(id, names)
        except (redis.RedisError, OSError, HeadraceError, ValueError) as error:
            pane.tell(complaint(error), bad=True)
            return
        if found:
            self.open_job(found[0], id)
        else:
            pane.tell(f"There is none in {counted(len(names), 'queue')}.", bad=True)

    # -- help ------------------------------------------------------------------------------------------

    def action_help(self) -> None:
        """Show the keys."""
        pane = self.screen
        if isinstance(pane, Pane):
            self.push_screen(Help(f"{KEYS}{pane.KEYS}\n\nAny key leaves this."))


def run(address: str, namespace: str, where: str, *, every: float, read_only: bool) -> None:
    """Show the server at *address* until the user ends it."""

    async def shown() -> None:
        async with AsyncInspector(url=address, namespace=namespace, fresh=every / 2) as look:
            await Top(look, {"url": address}, namespace, where, read_only=read_only, every=every).run_async()

    asyncio.run(shown())
