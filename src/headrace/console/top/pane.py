"""The base of all panes, with a head, a table whose cursor stays on its row, a filter, and a line
for results.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from attrs import evolve, frozen
from rich.cells import cell_len, set_cell_size
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Input, Static

from headrace.console.texts import Refused, clock, middle
from headrace.platform import visible

if TYPE_CHECKING:
    from headrace.console.top.app import Top

LEAST_FLEXIBLE = 8  # cells of a column that takes the cells that the others leave
LINE = "1 queues  2 workers  3 dead  4 attention  / filter  > sort  f find  ? keys"
Key = tuple[str, ...]


@frozen
class Column:
    """A column with its `title` and its `width` in cells.

    `flexible` is its share of the remaining cells. With `middle` a long text loses its middle, as
    names often differ in their ends.
    """

    title: str
    width: int = 0
    right: bool = False
    flexible: int = 0
    middle: bool = False


@frozen
class Row:
    """A row of a table with its key, its texts, and the styles of some texts by their index.

    Rows are sorted by `values`, one a column; a row without them is last.
    """

    key: Key
    texts: tuple[str, ...]
    styles: tuple[tuple[int, str], ...] = ()
    values: tuple[float | str, ...] = ()


@frozen
class PendingAction:
    """An action that a key asks for. Its question is answered by `y`, by the queue's name
    (`typed`), or by the text of a field (`fill`). '' asks nothing.
    """

    action: str
    queue: str
    question: str
    fields: Mapping[str, str] = {}
    typed: bool = False
    fill: str = ""


def widths(columns: Sequence[Column], room: int) -> list[int]:
    left = room - sum(column.width + 1 for column in columns)
    parts = sum(column.flexible for column in columns)
    return [
        column.width
        if not column.flexible
        else max(LEAST_FLEXIBLE, column.width + left * column.flexible // parts)
        for column in columns
    ]


def cell(text: str, width: int, *, right: bool = False, cut: bool = False, style: str = "") -> Text:
    """Make a cell of exactly *width*. A text that is too long is cut at its end, or in its middle
    (*cut*)."""
    text = visible(text)
    if cut and width > LEAST_FLEXIBLE + 3:
        text = middle(text, width)
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1).rstrip() + "…"
    blank = " " * (width - cell_len(text))
    return Text(blank + text if right else text + blank, style=style, no_wrap=True, end="")


class Question(ModalScreen[bool]):
    def __init__(self, text: str, note: str = "y yes · any other key no") -> None:
        super().__init__()
        self._text = text
        self._note = note

    def compose(self) -> ComposeResult:
        with Vertical(classes="asked"):
            yield Static(Text(self._text))
            if self._note:
                yield Static(self._note, classes="note")

    def on_key(self, event: events.Key) -> None:
        self.dismiss(event.key == "y")


class Prompt(ModalScreen[str | None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Leave")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question = question
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical(classes="asked"):
            yield Static(Text(self._question))
            yield Input(self._value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class Pane(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "back", "Back"),
        ("slash", "filter", "Filter"),
        ("greater_than_sign", "sort(1)", "Sort by the next column"),
        ("less_than_sign", "sort(-1)", "Sort by the column before"),
        ("o", "turn", "Turn the order"),
        ("f", "app.find", "Find"),
        ("t", "app.namespace", "The next namespace"),
        ("space", "app.hold", "Hold"),
        ("question_mark", "app.help", "Help"),
    ]
    COLUMNS: ClassVar[Sequence[Column]] = ()
    KEYS: ClassVar[str] = ""  # the lines of the help on this pane's own keys
    FILTER: ClassVar[str] = "Show rows with:"
    heading = ""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.failing, self.laid_out = "", False, False
        self._now = ""  # of the values on the screen
        self._rows: list[Row] = []
        # the column, and whether its first value is the largest
        self._sorted: tuple[int, bool] | None = None
        self._drawn: list[Row] | None = None
        self._shape: tuple[Sequence[Column], int] | None = None

    @property
    def top(self) -> Top:
        return cast("Top", self.app)  # pyright: ignore[reportUnknownMemberType] - App[Any] by their stubs

    @abstractmethod
    async def read(self) -> None:
        """Read the values, and show them by `fill`."""

    def pending(self, action: str, key: Key | None) -> PendingAction | None:  # noqa: ARG002 - most panes only show
        return None

    @property
    def sought(self) -> str:
        return self.filter

    @property
    def columns(self) -> Sequence[Column]:
        return self.COLUMNS

    def chosen(self, key: Key) -> None:
        """Open the object of a row."""

    # -- showing -----------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Static("", id="title")
        yield from self.body()
        yield Static("", id="said")
        yield Static("", id="keys")

    def body(self) -> ComposeResult:
        yield Static("", id="head")
        table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=False, cell_padding=0)
        yield table

    def on_mount(self) -> None:
        self.laid_out = True
        self.query_one("#keys", Static).update(Text(LINE, no_wrap=True))
        self._retitle()
        self.top.again()

    def on_screen_resume(self) -> None:
        self.top.again()

    def on_resize(self, _: events.Resize) -> None:
        self._draw()

    def fill(self, now: float, head: Sequence[str | Text], rows: Sequence[Row] = ()) -> None:
        """Show the lines above the table, and its rows, as they were at the time *now*. 0 is an
        unknown time.
        """
        self._now = clock(now or None)
        self._retitle()
        lines = (Text(line) if isinstance(line, str) else line for line in head)
        self.query_one("#head", Static).update(Text("\n").join(lines))
        self._rows = list(rows)
        self._draw()

    def fail(self, trouble: str) -> None:
        """Show why the values are not up to date any more, and grey them. Without *trouble* they
        are up to date again.
        """
        self.failing = bool(trouble)
        self.set_class(self.failing, "stale")
        self.report(trouble, bad=True)
        self._retitle()

    def _retitle(self) -> None:
        left = f"{self.top.called} · {self.heading}"
        notes = [f"filter: {self.filter}"] if self.filter else []
        if self._sorted is not None:
            column, falls = self._sorted
            notes.append(f"sort: {self.columns[column].title} {'▼' if falls else '▲'}")
        at = self._now or self.top.where
        right = "  ".join(
            (*notes, f"not up to date since {at}" if self.failing and self._now else at)
        )
        room = max(0, self.top.size.width - 1 - len(right))
        style = "bold red" if self.failing else ""
        self.query_one("#title", Static).update(
            cell(left, room, style="bold") + Text(" " + right, style, no_wrap=True)
        )

    def _draw(self) -> None:
        columns = self.columns
        if not columns or not self.laid_out:
            return
        table = cast("DataTable[Text]", self.query_one(DataTable))
        rows = self._chosen_rows()
        shape = (columns, self.top.size.width - 1)  # the scroll bar
        if rows == self._drawn and shape == self._shape:
            return
        cursor = self.key()
        sizes = widths(columns, shape[1])
        table.clear(columns=shape != self._shape)
        if shape != self._shape:
            for column, size in zip(columns, sizes, strict=True):
                table.add_column(cell(column.title, size, right=column.right), width=size + 1)
        for row in rows:
            styles = dict(row.styles)
            cells = [
                cell(text, size, right=column.right, cut=column.middle, style=styles.get(i, ""))
                for i, (column, text, size) in enumerate(
                    zip(columns, row.texts, sizes, strict=True)
                )
            ]
            table.add_row(*cells)
        self._drawn = rows
        self._shape = shape
        keys = [row.key for row in rows]
        table.move_cursor(row=keys.index(cursor) if cursor in keys else 0)

    def _chosen_rows(self) -> list[Row]:
        sought = self.sought.casefold()
        rows = [
            row
            for row in self._rows
            if not sought or any(sought in text.casefold() for text in row.texts)
        ]
        if self._sorted is not None:
            column, falls = self._sorted
            known = sorted(
                (row for row in rows if row.values),
                key=lambda row: row.values[column],
                reverse=falls,
            )
            rows = known + [row for row in rows if not row.values]
        return rows[:500]  # a filter finds the others

    def key(self) -> Key | None:
        if not self._drawn:
            return None
        row = self.query_one(DataTable).cursor_row
        return self._drawn[row].key if 0 <= row < len(self._drawn) else None

    def report(self, text: str, *, bad: bool = False) -> None:
        self.query_one("#said", Static).update(
            Text(text, style="bold red" if bad else "bold", no_wrap=True)
        )

    # -- keys --------------------------------------------------------------------------------------

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        key = self.key()
        if key is not None:
            self.chosen(key)

    def action_back(self) -> None:
        if self.filter:
            self._set_filter("")
        else:
            self.top.back()

    def action_filter(self) -> None:
        self.ask(self.FILTER, lambda text: self._set_filter(text or ""), self.filter)

    def _set_filter(self, text: str) -> None:
        self.filter = text
        self._retitle()
        self._draw()

    def action_sort(self, step: int) -> None:
        if not any(row.values for row in self._rows):
            self.report("These rows have their own order.")
            return
        ways = [None, *range(len(self.columns))]
        at = ways[(ways.index(self._sorted and self._sorted[0]) + step) % len(ways)]
        self._sort(None if at is None else (at, self.columns[at].right))

    def action_turn(self) -> None:
        if self._sorted is not None:
            self._sort((self._sorted[0], not self._sorted[1]))

    def _sort(self, by: tuple[int, bool] | None) -> None:
        self._sorted = by
        self._retitle()
        self._draw()

    def ask(self, question: str, then: Callable[[str | None], None], value: str = "") -> None:
        self.top.push_screen(Prompt(question, value), then)

    def action_act(self, action: str) -> None:
        if self.top.read_only:
            self.report("Nothing can be done: --read-only.", bad=True)
            return
        try:
            pending = self.pending(action, self.key())
        except Refused as error:
            self.report(str(error), bad=True)
            return
        if pending is None:
            self.report("There is nothing here to do that with.", bad=True)
        elif pending.typed:
            asked = f"{pending.question}\nType {pending.queue} to confirm:"
            self.ask(asked, lambda text: self._answered(pending, text == pending.queue))
        elif pending.fill:
            self.ask(pending.question, lambda text: self._filled(pending, text))
        elif pending.question:
            self.top.push_screen(
                Question(pending.question), lambda yes: self._answered(pending, yes)
            )
        else:
            self._answered(pending, True)

    def _filled(self, pending: PendingAction, text: str | None) -> None:
        fields = {**pending.fields, pending.fill: text or ""}
        self._answered(evolve(pending, fields=fields), text is not None)

    def _answered(self, pending: PendingAction, yes: bool | None) -> None:
        if yes:
            self.top.act(pending, self)
        else:
            self.report("Nothing was done.")
