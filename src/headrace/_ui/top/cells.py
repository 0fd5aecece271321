"""Tables that fit a terminal: columns, numbers in few characters, and charts of one line."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from headrace._model.views import visible

BARS = "▁▂▃▄▅▆▇█"
LEAST_FLEXIBLE = 8  # cells of a column that takes what the others leave
UNITS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


@frozen
class Column:
    """A column: its `title`, its `width` in cells, and its share of the remaining cells (`flexible`)."""

    title: str
    width: int = 0
    right: bool = False
    flexible: int = 0


def widths(columns: Sequence[Column], room: int) -> list[int]:
    """Share *room* cells out among *columns*, with a blank behind each."""
    left = room - sum(column.width + 1 for column in columns)
    parts = sum(column.flexible for column in columns)
    return [
        column.width if not column.flexible else max(LEAST_FLEXIBLE, column.width + left * column.flexible // parts)
        for column in columns
    ]


def cell(text: str, width: int, *, right: bool = False, style: str = "") -> Text:
    """Make a cell of exactly *width*; of a text that is too long, its beginning."""
    text = visible(text)
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1).rstrip() + "…"
    blank = " " * (width - cell_len(text))
    return Text(blank + text if right else text + blank, style=style, no_wrap=True, end="")


def short(number: float) -> str:
    """Write a number in at most six characters."""
    if abs(number) < 100_000:
        return f"{number:,.0f}"
    size, unit = next(one for one in UNITS if abs(number) >= one[0])
    return f"{number / size:.1f}{unit}" if abs(number) < 100 * size else f"{number / size:.0f}{unit}"


def chart(values: Sequence[float], width: int) -> str:
    """Draw the latest *values* as bars, the newest at the right; a blank is none."""
    some = list(values)[-width:]
    top = max(some, default=0.0)
    bars = (" " if value <= 0 else BARS[min(len(BARS) - 1, int(value / top * len(BARS)))] for value in some)
    return "".join(bars).rjust(width)
