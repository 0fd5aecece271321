"""The commands of `headrace schedules` for jobs that recur."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from headrace import Queue
from headrace.console.cli.console import bytes_of, opened, reported
from headrace.console.cli.enqueue import header_of
from headrace.console.cli.options import Create, Json, Name, Namespace, Url, on_queue, verbs
from headrace.console.cli.output import clock, missing, outcome, plain, show_values

group = verbs("List, add, run, pause and remove jobs that recur.")
One = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Some = Annotated[list[str], typer.Argument(metavar="NAME", show_default=False)]


class Missed(StrEnum):
    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


@group.command("list")
@on_queue
def list_schedules(queue: Queue, in_json: Json = False) -> None:
    """List the schedules of a queue, the next due first.

    With the last run of each.
    """
    found = queue.admin.schedules()
    cells = (
        [
            plain(one.name),
            "paused" if one.paused else clock(one.next_due),
            one.cron or f"every {one.every:g} s",
            one.timezone or "",
            one.missed,
            clock(one.last_run),
        ]
        for one in found
    )
    show_values(
        found, in_json, ("name", "next due", "timing", "timezone", "missed", "last run"), cells
    )


@group.command()
def add(
    name: Name,
    schedule: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name; one of that name is replaced.")
    ],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="Of its jobs.")] = "",
    every: Annotated[
        float | None, typer.Option(min=0.1, show_default=False, help="Seconds between its jobs.")
    ] = None,
    cron: Annotated[
        str | None, typer.Option(help="Five fields as in a crontab, or six with seconds first.")
    ] = None,
    timezone: Annotated[str | None, typer.Option(help="Of --cron: an IANA name; else UTC.")] = None,
    missed: Annotated[
        Missed, typer.Option(help="Treatment of ticks that passed while no worker ran.")
    ] = Missed.ONCE,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TEXT", help="A header; may be repeated.")
    ] = None,
    priority: Annotated[
        int, typer.Option(min=0, max=9, help="The level of its jobs; 0 comes first.")
    ] = 0,
    create: Create = False,
    in_json: Json = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Make a job recur, every so many seconds or by a cron expression.

    Workers of the queue enqueue its jobs.
    """
    with reported(), opened(name, url, namespace, create=create, priorities=priority + 1) as queue:
        headers = dict(map(header_of, header or ())) or None
        new = queue.admin.schedule(
            schedule,
            bytes_of(payload),
            every=every,
            cron=cron,
            timezone=timezone,
            missed=missed.value,
            headers=headers,
            priority=priority,
        )
        outcome(
            in_json, "added" if new else "replaced", {"queue": name, "name": schedule, "added": new}
        )


@group.command()
@on_queue
def remove(queue: Queue, names: Some, in_json: Json = False) -> None:
    """End schedules. Jobs that they have enqueued stay."""
    _each(queue, names, queue.admin.unschedule, "removed", "", in_json)


def _each(
    queue: Queue,
    names: list[str],
    change: Callable[[str], object],
    done: str,
    or_else: str,
    in_json: bool,
) -> None:
    changed = [one for one in dict.fromkeys(names) if change(one)]
    outcome(
        in_json,
        f"{done} {len(changed)}",
        {"queue": queue.name, done: len(changed), "names": changed},
    )
    wanted = len(set(names))
    missing(wanted - len(changed), wanted, f"no such schedule in {queue.name}{or_else}")


@group.command()
@on_queue
def run(queue: Queue, schedule: One, in_json: Json = False) -> None:
    """Enqueue the job of a schedule now. Its next tick stays."""
    job = queue.admin.run_schedule(schedule)
    if job is None:
        missing(1, 1, f"no such schedule in {queue.name}")
    outcome(in_json, f"enqueued {job}", {"queue": queue.name, "name": schedule, "id": job})


@group.command()
@on_queue
def pause(queue: Queue, names: Some, in_json: Json = False) -> None:
    """Let schedules enqueue no jobs until they are resumed."""
    _each(queue, names, queue.admin.pause_schedule, "paused", ", or it is paused already", in_json)


@group.command()
@on_queue
def resume(queue: Queue, names: Some, in_json: Json = False) -> None:
    """Let paused schedules enqueue jobs again.

    The option --missed of each decides about the ticks of the pause.
    """
    _each(queue, names, queue.admin.resume_schedule, "resumed", ", or it is not paused", in_json)
