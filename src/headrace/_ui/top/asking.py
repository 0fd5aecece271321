"""Dialogs in front of a pane: a confirmation, a line of text, and the help."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class Question(ModalScreen[bool]):
    """A question that `y` answers with yes, and any other key with no."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the question."""
        with Vertical(classes="asked"):
            yield Static(Text(self._question))
            yield Static("y yes · any other key no", classes="note")

    def on_key(self, event: object) -> None:
        """Answer."""
        self.dismiss(getattr(event, "key", "") == "y")


class Prompt(ModalScreen[str]):
    """A line of text; '' if it is left with Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Leave")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        """Show the question, and a line below it."""
        with Vertical(classes="asked"):
            yield Static(Text(self._question))
            yield Input(self._value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer."""
        self.dismiss(event.value)

    def action_leave(self) -> None:
        """Leave it."""
        self.dismiss("")


class Help(ModalScreen[None]):
    """The keys; any key leaves them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Show them."""
        with Vertical(classes="asked help"):
            yield Static(Text(self._text))

    def on_key(self) -> None:
        """Leave."""
        self.dismiss()
