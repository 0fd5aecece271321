"""The base of all panes: a head, a table with a cursor that stays on its row, a filter, a line for results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from attrs import frozen
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Static

from headrace._ui.top.asking import Prompt, Question
from headrace._ui.top.cells import Column, cell, widths

if TYPE_CHECKING:
    from headrace._ui.top.app import Top

LINE = "1 queues  2 workers  3 dead  enter open  esc back  / filter  f find  ? help"
ROWS_AT_MOST = 500  # that are shown at once; a filter finds the others
Key = tuple[str, ...]


@frozen
class Row:
    """A row of a table: its key, its texts, and their styles."""

    key: Key
    texts: tuple[str, ...]
    styles: tuple[tuple[int, str], ...] = ()


@frozen
class PendingAction:
    """An action that a key asks for: its queue and fields, and the question; `typed` has to be typed as the answer."""

    action: str
    queue: str
    fields: tuple[tuple[str, str], ...]
    question: str
    typed: str = ""


class Pane(Screen[None]):
    """The base of panes. It reads by `read` only while it is shown, and draws by `show`."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "back", "Back")]
    COLUMNS: ClassVar[Sequence[Column]] = ()
    KEYS: ClassVar[str] = ""  # what the help says of this pane's own keys

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.failing, self.laid_out = "", False, False
        self._rows: list[Row] = []
        self._drawn: list[Row] | None = None
        self._wide = -1

    @property
    def top(self) -> Top:
        """The application."""
        return cast("Top", self.app)  # pyright: ignore[reportUnknownMemberType] - App[Any] by their stubs

    @abstractmethod
    async def read(self) -> None:
        """Read the values, and draw them by `set_head` and `set_rows`."""

    def heading(self) -> str:
        """Return the pane's name."""
        return ""

    def pending(self, action: str, key: Key | None) -> PendingAction | None:  # noqa: ARG002 - of panes that can do nothing
        """Return the request of *action* on the row *key*; `None`: there is none."""
        return None

    def chosen(self, key: Key) -> None:
        """Open the object of a row."""

    # -- showing ---------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Lay out the pane: four parts from top to bottom."""
        yield Static("", id="title")
        yield Static("", id="head")
        if self.COLUMNS:
            table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=False, cell_padding=0)
            yield table
        yield Static("", id="said")
        yield Static("", id="keys")

    def on_mount(self) -> None:
        """Show the known values, and read the rest."""
        self.laid_out = True
        self.query_one("#keys", Static).update(Text(LINE, no_wrap=True))
        self.retitle()
        self.top.again()

    def on_screen_resume(self) -> None:
        """Be read again: this pane is in front."""
        self.top.again()

    def on_resize(self, _: events.Resize) -> None:
        """Fit the table to the terminal."""
        self._draw()

    def retitle(self, now: str = "") -> None:
        """Write the first line."""
        left = f"headrace {self.heading()}"
        notes = [f"filter: {self.filter}"] if self.filter else []
        right = "  ".join((*notes, now or self.top.where))
        room = max(0, self.top.size.width - 1 - len(right))
        self.query_one("#title", Static).update(cell(left, room, style="bold") + Text(" " + right, no_wrap=True))

    def set_head(self, *lines: str | Text) -> None:
        """Write the lines above the table."""
        self.query_one("#head", Static).update(Text("\n").join(Text(x) if isinstance(x, str) else x for x in lines))

    def set_rows(self, rows: list[Row]) -> None:
        """Show these rows, as far as the filter lets them through."""
        self._rows = rows
        self._draw()

    def _draw(self) -> None:
        if not self.COLUMNS or not self.laid_out:
            return
        table = cast("DataTable[Text]", self.query_one(DataTable))
        sought = self.filter.casefold()
        rows = [row for row in self._rows if not sought or any(sought in text.casefold() for text in row.texts)]
        rows, room = rows[:ROWS_AT_MOST], self.top.size.width - 1  # the scroll bar
        if rows == self._drawn and room == self._wide:
            return
        at = self.key()
        sizes = widths(self.COLUMNS, room)
        if room != self._wide:
            table.clear(columns=True)
            for column, size in zip(self.COLUMNS, sizes, strict=True):
                table.add_column(cell(column.title, size, right=column.right), width=size + 1)
        else:
            table.clear()
        for row in rows:
            styles = dict(row.styles)
            shape = zip(self.COLUMNS, row.texts, sizes, strict=True)
            cells = [
                cell(text, size, right=column.right, style=styles.get(i, ""))
                for i, (column, text, size) in enumerate(shape)
            ]
            table.add_row(*cells)
        self._drawn, self._wide = rows, room
        keys = [row.key for row in rows]
        table.move_cursor(row=keys.index(at) if at in keys else 0)

    def key(self) -> Key | None:
        """Return the key of the row under the cursor."""
        if not self.COLUMNS or not self._drawn:
            return None
        at = self.query_one(DataTable).cursor_row
        return self._drawn[at].key if 0 <= at < len(self._drawn) else None

    def tell(self, text: str, *, bad: bool = False) -> None:
        """Write a result, or an error."""
        self.query_one("#said", Static).update(Text(text, style="bold red" if bad else "bold", no_wrap=True))

    # -- keys ------------------------------------------------------------------------------------------

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        """Open the row under the cursor."""
        key = self.key()
        if key is not None:
            self.chosen(key)

    def action_back(self) -> None:
        """Take back the filter, or go back."""
        if self.filter:
            self.sift("")
        else:
            self.top.back()

    def action_filter(self) -> None:
        """Ask for a filter."""
        self.top.push_screen(Prompt("Show rows with:", self.filter), lambda text: self.sift(text or ""))

    def sift(self, text: str) -> None:
        """Filter the rows."""
        self.filter = text
        self.retitle()
        self._draw()

    def action_act(self, action: str) -> None:
        """Do something, once it was said that it is meant."""
        pending = self.pending(action, self.key())
        if self.top.read_only:
            self.tell("Nothing can be done: --read-only.", bad=True)
        elif pending is None:
            self.tell("There is nothing here to do that with.", bad=True)
        elif pending.typed:
            asked = f"{pending.question}\nType {pending.typed} to confirm:"

            def typed(text: str | None) -> None:
                if text == pending.typed:
                    self.top.do(pending, self)
                else:
                    self.tell("Nothing was done.")

            self.top.push_screen(Prompt(asked), typed)
        elif pending.question:

            def answered(yes: bool | None) -> None:
                if yes:
                    self.top.do(pending, self)
                else:
                    self.tell("Nothing was done.")

            self.top.push_screen(Question(pending.question), answered)
        else:
            self.top.do(pending, self)
