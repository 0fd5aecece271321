"""Completion of queues' names by the shell, which runs the program at each press of the key."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import typer

from headrace._cli.console import server
from headrace._net.sync.cluster import client_of
from headrace._protocol.keys import pattern, queue_of
from headrace._protocol.replies import text

WITHIN_S = 0.5  # for each answer of the server, and for the scan: a shell waits for us


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """List names of queues that begin so, as far as a scan finds them in time; none where there is no server.

    A private server is not started for it.
    """
    found: set[str] = set()
    until = time.monotonic() + WITHIN_S
    with suppress(Exception):  # what is written on a screen now would be in the midst of the user's line
        url = server(_given(context, "url"))
        if not url.startswith("embedded:"):
            timeouts = {"socket_timeout": WITHIN_S, "socket_connect_timeout": WITHIN_S}
            with client_of(url, **timeouts) as client:
                for key in client.scan_iter(pattern(_given(context, "namespace") or "headrace"), count=1000):
                    found.add(queue_of(text(key)) or "")
                    if time.monotonic() > until:
                        break
    return sorted(name for name in found if name and name.startswith(incomplete))


def _given(context: typer.Context | None, name: str) -> str | None:
    """Return an option that stands behind the command, or before it."""
    while context is not None:
        source: Any = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            return str(context.params[name])
        context = context.parent  # type: ignore[assignment] # typer's are click's
    return None
