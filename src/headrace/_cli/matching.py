"""Bulk actions on the command line: all jobs of a state that match, step by step, with progress on a terminal."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from headrace._api.sync.queue import Queue
from headrace._cli.console import say
from headrace._cli.output import outcome, succeed
from headrace.errors import ConfigurationError

Reason = Annotated[str, typer.Option(show_default=False, help="All whose reason has this text, instead of ids.")]
Kind = Annotated[str, typer.Option(show_default=False, help="All of this kind, instead of ids.")]


def is_bulk(ids: object, *filters: str) -> bool:
    """Tell whether all are meant that match. Raises `ConfigurationError` if there are ids, too."""
    if any(filters) and ids:
        raise ConfigurationError("give ids, or what they are to match")
    return any(filters)


def all_matching(queue: Queue[Any], action: str, state: str, reason: str, kind: str, word: str, in_json: bool) -> None:
    """Take an action for all that match, and say how many; broken off, and called again, it goes on."""
    cursor, looked, done = "", 0, 0
    while True:
        step = queue.admin.bulk(action, state, reason=reason, kind=kind, cursor=cursor)
        looked, done, cursor = looked + step.looked, done + step.done, step.cursor
        if not cursor:
            break
        if sys.stderr.isatty():
            say(f"{word} {done} of {looked}")
    outcome(in_json, f"{word} {done}", {"queue": queue.name, word: done})
    succeed(done)
