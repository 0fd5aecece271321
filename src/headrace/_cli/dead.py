"""`headrace dead`: the commands for dead letters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace._api.sync.queue import Queue
from headrace._cli.change import all_matching, is_bulk
from headrace._cli.options import Ids, Json, Jsonl, Kind, Limit, Reason, Yes, confirm, on_queue, verbs
from headrace._cli.output import bounded, changed, show_jobs
from headrace.errors import ConfigurationError

group = verbs("List dead letters, send them back, remove them.")


@group.command("list")
@on_queue
def list_letters(queue: Queue, limit: Limit = None, in_json: Jsonl = False) -> None:
    """List dead letters, oldest first."""
    columns = ("id", "attempt", "since", "worker", "reason", "payload")
    show_jobs(bounded(queue.admin.dead(), limit), in_json, columns)


@group.command()
@on_queue
def redrive(
    queue: Queue,
    ids: Ids = None,
    reason: Reason = "",
    kind: Kind = "",
    from_step: Annotated[
        str | None, typer.Option(show_default=False, help="Of one job: forget this step, and all after it.")
    ] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="TEXT|@FILE", help="Of one job: replace its payload, by a text or a file.")
    ] = None,
    in_json: Json = False,
) -> None:
    """Send dead letters back to the queue, all or some; one whose id is taken again stays."""
    for option, given in (("--from-step", from_step), ("--payload", payload)):
        if given is not None and (reason or kind or len(ids or ()) != 1):
            raise ConfigurationError(f"{option}: give the id of one job")
    if is_bulk(ids, reason, kind):
        all_matching(queue, "redrive", "dead", reason, kind, "redriven", in_json)
        return
    data: Any = ... if payload is None else contents(payload)
    number = queue.admin.redrive(*ids or (), from_step=from_step, payload=data)
    changed(queue.name, "redriven", number, in_json, ids, "no such dead letter, or its id is taken again")


def contents(text: str) -> bytes:
    """Return the bytes of a text, or of a file if it begins with @. Raises `ConfigurationError`."""
    if not text.startswith("@"):
        return os.fsencode(text)
    try:
        return Path(text[1:]).read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--payload {text}: {error}") from None


@group.command()
@on_queue
def purge(
    queue: Queue, ids: Ids = None, reason: Reason = "", kind: Kind = "", yes: Yes = False, in_json: Json = False
) -> None:
    """Remove dead letters for good, all or some."""
    if is_bulk(ids, reason, kind):
        confirm(f"Remove all dead letters of {queue.name} that match for good?", yes)
        all_matching(queue, "purge_dead", "dead", reason, kind, "purged", in_json)
        return
    if not ids:
        confirm(f"Remove all {queue.counts().dead} dead letters of {queue.name} for good?", yes)
    number = queue.admin.purge_dead(*ids or ())
    changed(queue.name, "purged", number, in_json, ids, "no such dead letter")
