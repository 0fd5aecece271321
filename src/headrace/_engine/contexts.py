"""The context variables of handlers: each run has a fresh copy of the worker's context at its start."""

from __future__ import annotations

from contextvars import Context, copy_context
from typing import Any

DECIMAL = "decimal_context"  # the variable of the module `decimal`: its value is changed in place


class Contexts:
    """The context of a worker after its start hooks, and copies of it for runs."""

    __slots__ = ("_mutable", "start")

    def __init__(self) -> None:
        self.start = copy_context()
        """The worker's own context, in which its stop hooks run."""
        self._mutable: list[tuple[Any, Any]] = [
            (variable, value.copy()) for variable, value in self.start.items() if variable.name == DECIMAL
        ]

    def fresh(self) -> Context:
        """Copy the context for a run, whose changes no other run sees."""
        made = self.start.copy()
        for variable, value in self._mutable:
            made.run(variable.set, value.copy())
        return made
