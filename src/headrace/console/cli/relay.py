"""`headrace relay`, the relay of an outbox as a program of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import reduce
from typing import Annotated, Any

import attrs
import typer

from headrace.console.cli.console import module_of, reported, say, set_up, terminated
from headrace.console.cli.options import Json
from headrace.console.cli.output import changed, clock, show_values
from headrace.errors import ConfigurationError, requiring


def relay(
    target: Annotated[str, typer.Argument(metavar="MODULE:OUTBOX", show_default=False)],
    database: Annotated[
        str, typer.Option(show_default=False, help="SQLAlchemy's URL, or an alias of Django's.")
    ],
    poll: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            show_default=False,
            help="Seconds between two looks; else 0.2, or 5 if it is told.",
        ),
    ] = None,
    refused: Annotated[
        bool, typer.Option("--refused", help="List the rows that were set aside, and end.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry-refused", help="Let them be tried again, and end.")
    ] = False,
    in_json: Json = False,
    url: Annotated[
        str | None, typer.Option(help="For a queue that names no server: sets HEADRACE_URL.")
    ] = None,
) -> None:
    """Move the rows of an outbox to its queue.

    Committed rows only. It runs until SIGTERM or Ctrl-C. Any number may run. A row that can't be a
    job is set aside with the reason.

    MODULE is imported from the working directory or Python's path; OUTBOX is a headrace.sql.Outbox
    in it.
    """
    with reported():
        if url is not None:
            os.environ["HEADRACE_URL"] = url
        with requiring("headrace relay", "sql", "sqlalchemy"):
            from headrace.sql import Outbox
        module, path = module_of(target, "outbox")
        outbox: Any = reduce(
            lambda found, name: getattr(found, name, None), path.split("."), module
        )
        if not isinstance(outbox, Outbox):
            raise ConfigurationError(f"{target} is no headrace.sql.Outbox")
        if refused or retry:
            set_aside([outbox], _engine(database), retry, in_json)
        else:
            serve([outbox], _engine(database), poll)


def serve(outboxes: Sequence[Any], engine: Any, poll: float | None) -> None:
    """Relay *outboxes* until a signal comes. *engine* is of SQLAlchemy, or an alias of Django's."""
    set_up("info", "text")
    relays = [outbox.relay(engine, poll) for outbox in outboxes]
    for other in relays[1:]:
        relays[0].join(other)
    with terminated(0), relays[0]:
        say(
            f"relays the outbox of {'queue' if len(outboxes) == 1 else 'queues'} {_names(outboxes)}"
        )
        threading.Event().wait()


def _names(outboxes: Sequence[Any]) -> str:
    return ", ".join(outbox.queue.name for outbox in outboxes)


def set_aside(outboxes: Sequence[Any], engine: Any, retry: bool, in_json: bool) -> None:
    from headrace.sql.connections import engine_of
    from headrace.sql.refused import Refused, refused, retry_refused

    own = engine_of(engine) if isinstance(engine, str) else engine
    if retry:
        changed(
            _names(outboxes), "retried", sum(retry_refused(own, one) for one in outboxes), in_json
        )
        return
    columns = [field.name for field in attrs.fields(Refused)]
    rows = [row for outbox in outboxes for row in refused(own, outbox)]
    cells = ((row.queue, row.position, row.job_id, clock(row.written), row.reason) for row in rows)
    show_values(rows, in_json, columns, cells, right=("position",))


def _engine(database: str) -> Any:
    from sqlalchemy import create_engine, make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    from sqlalchemy.pool import NullPool

    if ":" not in database:
        return database
    try:
        url = make_url(database)
    except (ArgumentError, ValueError):  # whose words may have a part of the password
        raise ConfigurationError(
            "--database: this URL can't be read; give postgresql://user:password@host/name, with the password "
            "percent-encoded, or sqlite:///path"
        ) from None
    try:
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        if url.get_dialect().is_async:
            raise ConfigurationError("--database: this driver is for asyncio; give one for threads")
        return create_engine(url, poolclass=NullPool)  # a relay holds its session itself
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"--database: {error}") from None
