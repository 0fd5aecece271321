"""`headrace relay`: the relay of an outbox as a program of its own."""

from __future__ import annotations

import os
import threading
from functools import reduce
from typing import Annotated, Any

import typer

from headrace._cli.console import module_of, reported, say, terminated
from headrace._telemetry.log import set_up
from headrace.errors import ConfigurationError, requiring


def relay(
    target: Annotated[str, typer.Argument(metavar="MODULE:OUTBOX", show_default=False)],
    database: Annotated[str, typer.Option(show_default=False, help="SQLAlchemy's URL, or an alias of Django's.")],
    poll: Annotated[
        float | None,
        typer.Option(min=0.001, show_default=False, help="Seconds between two looks; else 0.2, or 5 if it is told."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="For a queue that names no server: sets HEADRACE_URL.")] = None,
) -> None:
    """Move the rows of an outbox to its queue.

    It runs until SIGTERM or Ctrl-C. Any number may run.

    MODULE is imported from the working directory or Python's path; OUTBOX is a headrace.sql.Outbox in it.
    """
    with reported():
        if url is not None:
            os.environ["HEADRACE_URL"] = url
        with requiring("headrace relay", "sql", "sqlalchemy"):
            from headrace.sql import Outbox
        module, path = module_of(target, "outbox")
        outbox: Any = reduce(lambda found, name: getattr(found, name, None), path.split("."), module)
        if not isinstance(outbox, Outbox):
            raise ConfigurationError(f"{target} is no headrace.sql.Outbox")
        set_up("info", "text")
        with terminated(), outbox.relay(_engine(database), poll):
            say(f"relays the outbox of queue {outbox.queue.name}")
            threading.Event().wait()


def _engine(database: str) -> Any:
    """Make the engine of *database*, or return its alias."""
    from sqlalchemy import create_engine, make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    if ":" not in database:
        return database
    try:
        url = make_url(database)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        if url.get_dialect().is_async:
            raise ConfigurationError("--database: this driver is for asyncio; give one for threads")
        return create_engine(url)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"--database: {error}") from None
