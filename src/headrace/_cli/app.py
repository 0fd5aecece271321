"""The commands of `headrace`. Results go to standard output, plain unless that is a terminal; all else to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, cast

import attrs
import redis
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import headrace
from headrace._cli.console import connected, reported, say, server
from headrace._cli.demo import demo as run_demo
from headrace._cli.enqueue import Feeding, print_out
from headrace._cli.lines import Part, Reader
from headrace._cli.processes import Supervisor
from headrace._model.job import NewJob
from headrace._model.state import Counts, JobState
from headrace._protocol.export import protocol
from headrace._protocol.keys import job_id
from headrace._sync.discovery import queues
from headrace._sync.discovery import workers as every_worker
from headrace._sync.queue import Queue
from headrace.errors import ConfigurationError, HeadraceError

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="A reliable, atomic work queue on Redis Streams.",
)
dead = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="List dead letters, send them back, remove them.")
app.add_typer(dead, name="dead")
Url = Annotated[
    str | None,
    typer.Option(help="redis://…, rediss://…, unix://… or embedded:DIR; else HEADRACE_URL, else REDIS_URL."),
]
Namespace = Annotated[str, typer.Option(help="The first part of all keys.")]
Name = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False)]


def _each_an_id(ids: list[str] | None) -> list[str] | None:
    for value in ids or ():
        try:
            job_id(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return ids


Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="These only; all, if none is given.", callback=_each_an_id),
]


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Print the version, or the help if no command is given."""
    if version:
        typer.echo(headrace.__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@contextmanager
def _queue(name: str, url: str | None, namespace: str, priorities: int = 1) -> Generator[Queue, None, None]:
    with connected(server(url)) as client, _levelled(client, name, namespace, priorities) as queue:
        yield queue


def _levelled(client: redis.Redis, name: str, namespace: str, priorities: int = 1) -> Queue:
    """Open a queue with as many priority levels as it has, or *priorities* if that is more."""
    with Queue(name, client=client, namespace=namespace) as plain:
        priorities = max(plain.levels(), priorities)
    return Queue(name, client=client, namespace=namespace, priorities=priorities)


@app.command()
def enqueue(
    queue: Name,
    payloads: Annotated[list[str] | None, typer.Argument(metavar="PAYLOAD", help="A job each.")] = None,
    file: Annotated[str | None, typer.Option("--file", "-f", help="A job per line of this file; - is stdin.")] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Each line is an object, see above.")] = False,
    id: Annotated[str | None, typer.Option(help="The id of a single job.")] = None,
    delay: Annotated[float | None, typer.Option(help="Seconds until they are due.")] = None,
    priority: Annotated[int, typer.Option(min=0, max=9, help="Their level; 0 comes first.")] = 0,
    priorities: Annotated[int, typer.Option(min=1, max=10, help="Levels of the queue, if it is new.")] = 1,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=TEXT", help="A header; may be repeated.")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids of all jobs.")] = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Add jobs: the arguments, or else the lines of a file or of standard input.

    A line is a payload; empty lines are skipped. With --jsonl a line is an object with a "payload", and perhaps
    "id", "delay" (seconds), "priority" and "headers" (text to text); a payload that is no string is kept as compact
    JSON.
    """
    with reported():
        if payloads and (file is not None or jsonl):
            raise ConfigurationError("give payloads as arguments, or lines with --file or --jsonl, not both")
        if id is not None and len(payloads or ()) != 1:
            raise ConfigurationError("--id is for a single payload; in lines, give ids with --jsonl")
        if jsonl and (delay is not None or header or priority):
            raise ConfigurationError("with --jsonl, delay, headers and priority are in the lines")
        template = NewJob(b"", id, dict(map(_header, header or ())) or None, delay, priority)
        if payloads:
            with _queue(queue, url, namespace, max(priorities, priority + 1)) as target:
                jobs = [attrs.evolve(template, payload=os.fsencode(text)) for text in payloads]
                _check(target, jobs)
                Feeding(target, ids).run([Part(jobs)])
            return
        with _opened(file) as stream, _queue(queue, url, namespace, max(priorities, priority + 1)) as target:
            _check(target, [template])
            plain = template == NewJob(b"")
            reader = Reader(stream, target.ops, jsonl, None if plain else template)
            Feeding(target, ids, reader, f"{file}, " if file not in (None, "-") else "").run_file()


def _header(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise ConfigurationError(f"--header {text!r}: give NAME=TEXT")
    return name, value


def _check(queue: Queue, jobs: Iterable[NewJob]) -> None:
    try:
        for job in jobs:
            queue.ops.item(job)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(str(error)) from None


@contextmanager
def _opened(file: str | None) -> Generator[IO[bytes], None, None]:
    if file is not None and file != "-":
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(Path(file).open("rb"))
            except OSError as error:
                raise ConfigurationError(f"{file}: {error.strerror}") from None
            yield stream
    elif sys.__stdin__ is None or (file is None and sys.__stdin__.isatty()):
        raise ConfigurationError("nothing to enqueue: give payloads, --file FILE, or lines on standard input")
    else:
        yield cast("IO[bytes]", sys.__stdin__.buffer)


@app.command()
def work(
    target: Annotated[str, typer.Argument(metavar="MODULE:WORKER", show_default=False)],
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, max=1000, help="How many.")] = 1,
    url: Annotated[str | None, typer.Option(help="For a worker that names no server: sets HEADRACE_URL.")] = None,
    max_outage: Annotated[
        float | None,
        typer.Option(min=0.001, show_default=False, help="Seconds to wait for a server that went away; else for ever."),
    ] = None,
) -> None:
    """Run a worker in processes that are started again when they die.

    MODULE is imported from the working directory or Python's path; WORKER is a headrace.Worker or AsyncWorker in it.
    On SIGTERM or SIGINT (Ctrl-C) jobs under way are finished; on a second signal they are given back.
    """
    with reported():
        if url is not None:
            os.environ["HEADRACE_URL"] = url
        raise typer.Exit(Supervisor(target, processes, max_outage).run())


COLUMNS = ("waiting", "parked", "leased", "delayed", "dead", "enqueued", "completed", "lost", "paused", "workers")


@app.command()
def stats(
    names: Annotated[list[str] | None, typer.Argument(metavar="QUEUE", help="All, if none is given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, by queue.")] = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Show how many jobs are in each state, and what has become of the others."""
    with reported():
        rows: dict[str, dict[str, Any]] = {}
        with connected(server(url)) as client:
            for name in names or queues(client, namespace=namespace):
                with _levelled(client, name, namespace) as queue:
                    counts = queue.counts()
                    workers = [
                        attrs.asdict(one, filter=lambda a, _: a.name != "queue") for one in queue.workers() if one.alive
                    ]
                    more = {"lost": counts.lost, "paused": queue.paused(), "workers": workers}
                    rows[name] = {**attrs.asdict(counts), **more}
        if as_json:
            print_out(json.dumps(rows, indent=2 if sys.stdout.isatty() else None))
            return
        every = [field.name for field in attrs.fields(Counts)] + ["lost", "paused", "workers"]
        columns = COLUMNS if sys.stdout.isatty() else every
        cells = ((name, *(_cell(row[column]) for column in columns)) for name, row in rows.items())
        _show(("queue", *columns), cells, right=columns)


def _cell(value: Any) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return len(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType]


def _show(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Print a table on a terminal, and lines of tab-separated fields elsewhere."""
    if not sys.stdout.isatty():
        print_out("\t".join(column.replace(" ", "_") for column in columns))
        for row in rows:
            print_out("\t".join(map(str, row)))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # as text, no markup
    Console(highlight=False).print(table)


@app.command()
def workers(
    names: Annotated[list[str] | None, typer.Argument(metavar="QUEUE", help="All, if none is given.")] = None,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """List the workers of queues: since when, whether they are alive, and how many jobs each has leased."""
    with reported(), connected(server(url)) as client:
        found = [one for one in every_worker(client, namespace=namespace) if not names or one.queue in names]
        cells = ([x.queue, x.name, _time(x.since), "yes" if x.alive else "no", x.leased] for x in found)
        _show(("queue", "worker", "since", "alive", "leased"), cells, right=("leased",))


@app.command()
def pause(name: Name, url: Url = None, namespace: Namespace = "headrace") -> None:
    """Hand out no more jobs of a queue; those that are leased go on."""
    with reported(), _queue(name, url, namespace) as queue:
        print_out("paused" if queue.pause() else "it was paused already")


@app.command()
def resume(name: Name, url: Url = None, namespace: Namespace = "headrace") -> None:
    """Hand out jobs again."""
    with reported(), _queue(name, url, namespace) as queue:
        print_out("resumed" if queue.resume() else "it was not paused")


@app.command()
def move(
    name: Name,
    to: Annotated[str, typer.Argument(metavar="TO", show_default=False)],
    ids: Ids = None,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Move jobs that wait or are delayed to the back of another queue of the group, all or some."""
    with reported(), _queue(name, url, namespace) as queue:
        number = queue.move(to, *ids or ())
        print_out(f"moved {number}")
        if ids and number < (wanted := len(set(ids))):
            raise HeadraceError(f"{wanted - number} of {wanted}: no such job waits, or its id is taken in {to}")


@dead.command("list")
def dead_list(
    name: Name,
    limit: Annotated[int | None, typer.Option(min=1, help="The oldest only.")] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="A JSON object a line.")] = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """List dead letters, oldest first."""
    with reported(), _queue(name, url, namespace) as queue:
        letters = islice(queue.dead(), limit)
        if jsonl:
            for letter in letters:
                print_out(json.dumps(_as_json(letter), ensure_ascii=False))
            return
        cells = (
            [_plain(letter.job.id), letter.job.attempt, _time(letter.since), *map(_plain, _texts(letter))]
            for letter in letters
        )
        _show(("id", "attempt", "since", "worker", "reason", "payload"), cells)


def _as_json(letter: JobState) -> dict[str, Any]:
    job = letter.job
    try:
        payload = {"payload": job.payload.decode()}
    except UnicodeDecodeError:
        payload = {"payload_hex": job.payload.hex()}
    more = {"attempt": job.attempt, "enqueued_at": job.enqueued_at, "since": letter.since}
    return {"id": job.id, **payload, "headers": dict(job.headers), **more, **_who(letter)}


def _who(letter: JobState) -> dict[str, str | None]:
    return {"worker": letter.worker, "reason": letter.reason}


def _texts(letter: JobState) -> tuple[str, str, str]:
    payload = letter.job.payload[:200].decode("utf-8", "backslashreplace")
    return letter.worker or "", letter.reason or "", payload


def _plain(text: str) -> str:
    """Put *text* on one line, without characters that a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _time(moment: float | None) -> str:
    return "" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dead.command()
def redrive(name: Name, ids: Ids = None, url: Url = None, namespace: Namespace = "headrace") -> None:
    """Send dead letters back to the queue, all or some; one whose id is taken again stays."""
    with reported(), _queue(name, url, namespace) as queue:
        _moved("redriven", queue.redrive(*ids or ()), ids)


@dead.command()
def purge(
    name: Name,
    ids: Ids = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, on a terminal.")] = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Remove dead letters for good, all or some."""
    with reported(), _queue(name, url, namespace) as queue:
        if not (ids or yes) and sys.stdin.isatty():
            typer.confirm(f"Remove all {queue.counts().dead} dead letters of {name} for good?", abort=True, err=True)
        _moved("purged", queue.purge_dead(*ids or ()), ids)


def _moved(done: str, number: int, ids: Sequence[str] | None) -> None:
    print_out(f"{done} {number}")
    if ids and number < (wanted := len(set(ids))):
        taken = ", or its id is taken again" if done == "redriven" else ""
        raise HeadraceError(f"{wanted - number} of {wanted}: no such dead letter{taken}")


@app.command()
def repair(name: Name, url: Url = None, namespace: Namespace = "headrace") -> None:
    """Find and mend what foreign commands (XDEL, XACK, XTRIM, XGROUP, …) broke in a queue; show how much of each kind.

    Workers may go on meanwhile.
    """
    with reported(), _queue(name, url, namespace) as queue:
        mended = queue.repair()
        if not mended:
            say(f"nothing to mend in {name}")
        _show(("mended", "number"), [row for row in attrs.asdict(mended).items() if row[1]], right=["number"])


@app.command("protocol")
def show_protocol() -> None:
    """Print, as one JSON object, what clients in other languages need: the scripts in full, names, rules, defaults."""
    with reported():
        print_out(json.dumps(protocol(), indent=2))


@app.command()
def demo(
    url: Annotated[str | None, typer.Option(help="Any server; a private one if none is given.")] = None,
    limit: Annotated[int | None, typer.Option(hidden=True, min=1)] = None,
) -> None:
    """Parse Python's standard library as jobs, kill a worker half-way, and compare with a plain single pass."""
    with reported():
        raise typer.Exit(run_demo(url, limit))
