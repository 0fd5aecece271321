"""`headrace top`: queues, workers and jobs in the terminal; `--once` prints a table, or JSON, and ends."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Annotated

import redis
import typer

from headrace._cli.console import connected, reported, server, terminated
from headrace._cli.looking import show_stats, views_of
from headrace._cli.options import Json, Names, Namespace, Url
from headrace._cli.web_demo import running
from headrace._net.base.address import shown
from headrace.errors import ConfigurationError, without_extra
from headrace.inspect import Inspector

BETWEEN_S = 1.0  # seconds between the two looks that rates need


def top(
    names: Names = None,
    once: Annotated[bool, typer.Option("--once", help="Print the queues, with their rates, and end.")] = False,
    every: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two looks.")] = 2.0,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, do nothing.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Show a demonstration on a server of its own.")] = False,
    in_json: Json = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Watch queues, workers and jobs in the terminal, and act.

    The key ? shows the others.
    """
    with reported(), ExitStack() as stack:
        if not once and (in_json or names):
            raise ConfigurationError("--json, and names of queues, are for headrace top --once")
        stack.enter_context(terminated())
        address = stack.enter_context(running()) if demo else server(url)
        client = stack.enter_context(connected(address))  # is there, and stays if it is an embedded one
        if once:
            _once(client, namespace, names, in_json)
            return
        try:
            from headrace._ui.top.app import run
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in {"textual", "rich"}:
                raise
            raise ConfigurationError(without_extra("headrace top", "top")) from None
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ConfigurationError("headrace top needs a terminal; headrace top --once needs none")
        run(address, namespace, shown(address), every=every, read_only=read_only)


def _once(client: redis.Redis, namespace: str, names: list[str] | None, in_json: bool) -> None:
    with Inspector(client=client, namespace=namespace, fresh=0.0) as look:
        views_of(look, client, names)
        time.sleep(BETWEEN_S)
        show_stats(look, views_of(look, client, names), in_json, rates=True)
