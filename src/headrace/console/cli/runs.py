"""The commands of `headrace runs`, for jobs that take steps, and `headrace replay`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from enum import StrEnum
from typing import Annotated

import attrs
import typer

from headrace import AsyncWorker, Queue, Worker
from headrace.console.cli.child import load
from headrace.console.cli.console import path_of, reported, say
from headrace.console.cli.options import Json, Limit, on_queue, verbs
from headrace.console.cli.output import bounded, clock, plain, print_json, print_out, show, succeed
from headrace.errors import ConfigurationError
from headrace.inspect import RunState
from headrace.testing import Replayed, recorded, replay as replayed

Shown = StrEnum(
    "Shown", ["BLOCKED", "DELAYED", "LEASED", "WAITING", "DEAD"]
)  # choices of `runs --state`

group = verbs("List the runs of jobs that take steps, or export them.")


@group.command("list")
@on_queue
def list_runs(
    queue: Queue,
    state: Annotated[
        Shown | None,
        typer.Option(help="Only runs in this state; else the first three, in this order."),
    ] = None,
    build: Annotated[
        str | None, typer.Option(show_default=False, help="Only runs that this build began.")
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(min=0, show_default=False, help="Only runs that began so many seconds ago."),
    ] = None,
    limit: Limit = None,
    in_json: Json = False,
) -> None:
    """List the runs of a queue that are suspended or running.

    Blocked ones wait for a signal, and delayed ones sleep. `at` is where a run stands: its sleep or
    wait, or its last step.
    """
    latest = math.inf if older_than is None else time.time() - older_than
    found = (one for one in queue.admin.runs(state=state, build=build) if one.began <= latest)
    shown = bounded(found, limit)
    if in_json:
        for one in shown:
            print_json(attrs.asdict(one))
        return
    rows = (
        [one.id, one.state, one.at, one.kind, *map(clock, (one.began, one.due)), *_builds(one)]
        for one in shown
    )
    show(("id", "state", "at", "kind", "began", "due", "build", "waits for"), rows)


def _builds(one: RunState) -> tuple[str, str]:
    return one.build, one.waits_for


@group.command()
@on_queue
def export(queue: Queue) -> None:
    """Write the runs of a queue, each as a line of JSON.

    These are suspended and running runs. A line has the job, with its payload, and the records of
    its steps, sleeps and waits. Payload and values are as the queue's codec has written them: as
    text, or in base64 if they are not UTF-8. `headrace replay` reads them.
    """
    for line in recorded(queue):
        print_out(line)


def replay(
    target: Annotated[
        str, typer.Argument(metavar="WORKER", help="MODULE:NAME, as for `headrace work`.")
    ],
    file: Annotated[
        str, typer.Argument(help="Lines of `headrace runs export`; - is standard input.")
    ],
    removed: Annotated[
        list[str] | None,
        typer.Option(show_default=False, help="A step that was removed on purpose; once for each."),
    ] = None,
    in_json: Json = False,
) -> None:
    """Tell which recorded runs would not go on with this code.

    The worker's handlers are called without a server. Steps answer from the records, and none is
    run. There is a line for each run that would not go on, and the exit code is 1 if there is one.

    With --json there is a line for each run: queue, id, end (completed, suspended, new, ended or
    misfit), at (the step that it comes to), reason, and the unused records.
    """
    with reported():
        with redirect_stdout(sys.stderr):
            worker = _loaded(target)
        misfits = number = 0
        for number, line in enumerate(_lines(file), 1):
            one = _replayed(worker, line, f"{file}, line {number}", removed or [])
            misfits += not one.fits
            if in_json:
                print_json(attrs.asdict(one))
            elif not one.fits:
                print_out(plain(f"{one.queue} {one.id}: {one.reason}"))
        say(f"{number} runs: {number - misfits} would go on, {misfits} would not")
        succeed(not misfits)


def _loaded(target: str) -> Worker | AsyncWorker:
    try:
        return load(target)
    except ConfigurationError as error:
        raise ConfigurationError(f"{target}: {error}") from None


def _lines(file: str) -> Iterator[bytes]:
    with ExitStack() as stack:
        try:
            lines = (
                sys.stdin.buffer if file == "-" else stack.enter_context(path_of(file).open("rb"))
            )
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{file}: {error}") from None
        yield from filter(bytes.strip, lines)


def _replayed(
    worker: Worker | AsyncWorker, line: bytes, where: str, removed: list[str]
) -> Replayed:
    try:
        with redirect_stdout(sys.stderr):
            return replayed(worker, line, removed=removed)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
