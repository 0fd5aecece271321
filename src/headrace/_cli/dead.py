"""`headrace dead`: the commands for dead letters."""

from __future__ import annotations

import sys

from headrace._cli.change import all_matching, is_bulk
from headrace._cli.console import opened, reported
from headrace._cli.options import Ids, Json, Jsonl, Kind, Limit, Name, Namespace, Reason, Url, Yes, confirm, verbs
from headrace._cli.output import all_of, bounded, bytes_of, clock, outcome, plain, show, show_jobs, start_of

group = verbs("List dead letters, send them back, remove them.")


@group.command("list")
def list_letters(
    name: Name, limit: Limit = None, in_json: Jsonl = False, url: Url = None, namespace: Namespace = "headrace"
) -> None:
    """List dead letters, oldest first."""
    with reported(), opened(name, url, namespace) as queue:
        letters = bounded(queue.admin.dead(), limit)
        if in_json or sys.stdout.isatty():
            show_jobs(letters, in_json)
            return
        cells = (
            [
                plain(one.job.id), one.job.attempt, clock(one.since), plain(one.worker or ""), plain(one.reason or ""),
                start_of(bytes_of(one.job.payload)),
            ]
            for one in letters
        )  # fmt: skip
        show(("id", "attempt", "since", "worker", "reason", "payload"), cells)


@group.command()
def redrive(
    name: Name,
    ids: Ids = None,
    reason: Reason = "",
    kind: Kind = "",
    in_json: Json = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Send dead letters back to the queue, all or some; one whose id is taken again stays."""
    with reported(), opened(name, url, namespace) as queue:
        if is_bulk(ids, reason, kind):
            all_matching(queue, "redrive", "dead", reason, kind, "redriven", in_json)
            return
        number = queue.admin.redrive(*ids or ())
        outcome(in_json, f"redriven {number}", {"queue": name, "redriven": number})
        all_of(number, ids, "no such dead letter, or its id is taken again")


@group.command()
def purge(
    name: Name,
    ids: Ids = None,
    reason: Reason = "",
    kind: Kind = "",
    yes: Yes = False,
    in_json: Json = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Remove dead letters for good, all or some."""
    with reported(), opened(name, url, namespace) as queue:
        if is_bulk(ids, reason, kind):
            confirm(f"Remove all dead letters of {name} that match for good?", yes)
            all_matching(queue, "purge_dead", "dead", reason, kind, "purged", in_json)
            return
        if not ids:
            confirm(f"Remove all {queue.counts().dead} dead letters of {name} for good?", yes)
        number = queue.admin.purge_dead(*ids or ())
        outcome(in_json, f"purged {number}", {"queue": name, "purged": number})
        all_of(number, ids, "no such dead letter")
