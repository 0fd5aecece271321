"""The context variables of handlers: each run has a fresh copy of those with which its worker was started."""

from __future__ import annotations

from contextvars import Context, copy_context
from typing import Any

DECIMAL = "decimal_context"  # the variable of the module `decimal`: its value is changed in place


class Contexts:
    """The context in which a worker was started, after its hooks of the start, and copies of it for runs."""

    __slots__ = ("_mutable", "start")

    def __init__(self) -> None:
        self.start = copy_context()
        """The context of the worker's own: hooks of the end run in it."""
        self._mutable: list[tuple[Any, Any]] = [
            (variable, value.copy()) for variable, value in self.start.items() if variable.name == DECIMAL
        ]

    def fresh(self) -> Context:
        """Copy the context for a run: no other run sees its changes."""
        made = self.start.copy()
        for variable, value in self._mutable:
            made.run(variable.set, value.copy())
        return made
