"""Tables that fit a terminal."""

from __future__ import annotations

from headrace.console.texts import chart, short
from headrace.console.top.pane import Column, cell, widths
from tests.support.facts import each


@each(
    ("number", "text"),
    [
        (0, "0"),
        (99_999, "99,999"),
        (100_000, "100k"),
        (1_234_567, "1.2M"),
        (123_456_789, "123M"),
        (5e9, "5.0G"),
    ],
)
def test_numbers_take_six_characters(number: float, text: str) -> None:
    assert short(number) == text
    assert len(text) <= 6


def test_what_is_left_over_is_shared() -> None:
    columns = (Column("a", flexible=1), Column("b", 10), Column("c", 5, flexible=2))
    assert widths(columns, 48) == [10, 10, 25]
    assert sum(widths(columns, 48)) + len(columns) == 48
    assert widths(columns, 10) == [8, 10, 8]


@each("text", ["", "abc", "abcdefgh", "日本語の長い名前", "a日b本c語d"])
@each("right", [True, False])
def test_a_cell_is_as_wide_as_its_column(text: str, right: bool) -> None:
    assert cell(text, 5, right=right).cell_len == 5


def test_markup_is_no_markup() -> None:
    assert cell("[red]x", 8).plain == "[red]x  "


def test_a_chart_has_its_highest_bar_where_the_most_was() -> None:
    assert chart([0, 1, 8, 4], 6) == "   ▂█▅"
    assert chart([], 3) == "   "
    assert chart([0, 0], 3) == "   "
    assert len(chart(list(range(100)), 10)) == 10
