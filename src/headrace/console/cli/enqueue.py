"""`headrace enqueue` adds jobs from arguments, or from lines of files and standard input, and shows
its progress.

A line is a payload without its line ending (LF or CRLF); empty lines are skipped. A JSON line is an
object with `payload`, and perhaps `id`, `delay` (seconds), `priority`, `cost` and `headers` (text
to text). A payload that is a string is its text in UTF-8; any other is kept as compact JSON, as
`JSONCodec` writes it.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import IO, Annotated, Any, cast

import attrs
import redis
import typer
from attrs import define, evolve

import headrace
from headrace import Debounce, NewJob, Queue, Replace, Throttle
from headrace.console.cli.console import INTERRUPTED, bytes_of, opened, path_of, reported, say
from headrace.console.cli.options import Create, Json, Name, Namespace, Url
from headrace.console.cli.output import print_json, print_out
from headrace.errors import ConfigurationError, HeadraceError, QueueFull
from headrace.platform import InnerQueue, QueueOptions

READ_BYTES = 1 << 20  # at a time
FIELDS = ("payload", "id", "delay", "priority", "headers", "cost")


class BadLineError(ConfigurationError):
    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number}: {why}")


@define
class Batch:
    jobs: list[Any]
    line: int = 0


@define
class Reader:
    """A reader of jobs from a stream of bytes. *template* has the fields of jobs from plain lines,
    except the payload.
    """

    stream: IO[bytes]
    queue: Queue
    jsonl: bool = False
    template: NewJob | None = None
    line: int = 0  # the last one that was read
    size: int = 0  # bytes read so far

    def batches(self) -> Iterator[Batch]:
        """Yield the jobs of each read, so that no job waits for a full batch.

        After a `BadLineError` no job of its batch was yielded.
        """
        for lines in self._lines():
            jobs: list[Any] = []
            for text in lines:
                self.line += 1
                if line := text.removesuffix(b"\r"):
                    jobs.append(self._job(line))
            if jobs:
                yield Batch(jobs, self.line)

    def check(self) -> Iterator[int]:
        start = self.stream.tell()
        for _ in self.batches():
            yield self.size
        self.stream.seek(start)
        self.line = self.size = 0

    def _lines(self) -> Iterator[list[bytes]]:
        begun: list[bytes] = []  # of a line that has no end yet
        read: Any = getattr(
            self.stream, "read1", self.stream.read
        )  # it returns the bytes that have come, without waiting for more
        while chunk := cast(bytes, read(READ_BYTES)):
            self.size += len(chunk)
            first, *others = chunk.split(b"\n")
            begun.append(first)
            if others:
                last = others.pop()
                yield [b"".join(begun), *others]
                begun = [last]
        if rest := b"".join(begun):
            yield [rest]

    def _job(self, line: bytes) -> Any:
        if not self.jsonl:
            if self.template is None:
                return line
            return evolve(self.template, payload=line)
        try:
            job = parse(line)
            InnerQueue(self.queue).encoded(job)
        except (ValueError, TypeError, RecursionError) as error:
            raise BadLineError(self.line, str(error)) from None
        return job


def parse(line: bytes) -> NewJob:
    try:
        row: Any = json.loads(line.decode("utf-8-sig"), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(row, dict):
        raise ValueError('not a JSON object: give {"payload": …}')  # noqa: TRY004 - the line is wrong, not a type
    values = cast("Mapping[str, Any]", row)
    if unknown := [name for name in values if name not in FIELDS]:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(FIELDS)}")
    if "payload" not in values:
        raise ValueError('no "payload"')
    payload: Any = values["payload"]
    try:
        if not isinstance(payload, str):
            payload = json.dumps(
                payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")
            )
        data = payload.encode()
    except UnicodeEncodeError:
        raise ValueError("payload is not valid Unicode") from None
    return NewJob(data, **{name: values[name] for name in FIELDS[1:] if name in values})


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


@define
class Enqueuing:
    queue: Queue
    ids: bool
    in_json: bool = False
    name: str = ""
    added: int = 0
    known: int = 0
    line: int = 0

    @property
    def _lists_jobs(self) -> bool:
        return self.ids or self.in_json

    def run_file(self, reader: Reader) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        status = os.fstat(reader.stream.fileno())
        regular = stat.S_ISREG(status.st_mode)
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[jobs]}"))
        shown = console.is_terminal and not (self._lists_jobs and sys.stdout.isatty())
        bar = Progress(*columns, console=console, transient=True, disable=not shown)
        # a disabled one still prints an empty line, in old versions of rich
        with bar if shown else nullcontext():
            task = bar.add_task("enqueuing", total=status.st_size if regular else None, jobs="")
            if regular and reader.jsonl:
                bar.update(task, description="checking")
                with self._errors_with_progress():
                    for size in reader.check():
                        bar.update(task, completed=size)
                bar.update(task, description="enqueuing")
            began = time.monotonic()

            def show() -> None:
                jobs = self.added + self.known
                rate = jobs / max(time.monotonic() - began, 1e-3)
                bar.update(task, completed=reader.size, jobs=f"{jobs:,} jobs, {rate:,.0f}/s")

            self.run(reader.batches(), show)

    def run(self, batches: Iterable[Batch], show: Callable[[], None] = lambda: None) -> None:
        began = time.monotonic()
        with self._errors_with_progress():
            for batch in batches:
                receipts = self.queue.enqueue_many(batch.jobs)
                self._count(receipts)
                self.line = batch.line
                show()
                if self.in_json:
                    for receipt in receipts:
                        print_json(
                            {"id": receipt.id, "added": receipt.added, "outcome": receipt.outcome}
                        )
                elif self.ids:
                    print_out("\n".join(receipt.id for receipt in receipts))
                if self._lists_jobs:
                    sys.stdout.flush()
        if not self.added + self.known:
            raise HeadraceError(f"{self.name}there is nothing to enqueue: the input has no jobs")
        seconds = time.monotonic() - began
        rate = (self.added + self.known) / max(seconds, 1e-3)
        text = f"enqueued {self.added} jobs in {seconds:.2f} s, {rate:.0f}/s; {self.known} were there already"
        (say if self._lists_jobs else print_out)(text)

    def _count(self, receipts: Sequence[headrace.Receipt]) -> None:
        added = sum(receipt.added for receipt in receipts)
        self.added += added
        self.known += len(receipts) - added

    @contextmanager
    def _errors_with_progress(self) -> Generator[None, None, None]:
        try:
            yield
        except BadLineError as error:
            raise ConfigurationError(
                f"{self.name}{error}; {self._progress() or 'nothing was enqueued'}"
            ) from None
        except (redis.RedisError, QueueFull) as error:
            self._count(
                [receipt for receipt in getattr(error, "receipts", []) if receipt is not None]
            )
            raise HeadraceError(f"{error}; {self._progress(least=True)}") from None
        except KeyboardInterrupt:
            say(f"interrupted; {self._progress(least=True)}")
            raise SystemExit(INTERRUPTED) from None

    def _progress(self, *, least: bool = False) -> str:
        upto = f", up to line {self.line}," if self.line else ""
        if least:
            return (
                f"{self.added} jobs{upto} were enqueued for certain, those of the last call perhaps"
            )
        return f"{self.added} jobs{upto} were enqueued" if self.line else ""


def enqueue(
    name: Name,
    payloads: Annotated[
        list[str] | None, typer.Argument(metavar="PAYLOAD", help="A job each.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="A job per line of this file; - is stdin.")
    ] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Each line is an object, see above.")
    ] = False,
    id: Annotated[str | None, typer.Option(help="The id of a single job.")] = None,
    delay: Annotated[float | None, typer.Option(help="Seconds until they are due.")] = None,
    priority: Annotated[
        int,
        typer.Option(
            min=0,
            max=9,
            help="Their level, which the queue must have, or --create gives it; 0 is first.",
        ),
    ] = 0,
    priorities: Annotated[
        int,
        typer.Option(
            min=1,
            max=10,
            help="Levels of the queue, if it is to have more; workers declare as many.",
        ),
    ] = 1,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TEXT", help="A header; may be repeated.")
    ] = None,
    cost: Annotated[
        float | None, typer.Option(help="Mean run times that each counts for, in a fair queue.")
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids of all jobs.")] = False,
    unique_for: Annotated[
        float | None, typer.Option(help="Seconds; ids of completed jobs stay taken so long.")
    ] = None,
    debounce: Annotated[
        float | None, typer.Option(help="Seconds; put off the job of this id.")
    ] = None,
    max_wait: Annotated[float | None, typer.Option(help="Put off so many seconds at most.")] = None,
    throttle: Annotated[
        float | None, typer.Option(help="Seconds; drop later jobs of this id.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the job of this id, if not begun.")
    ] = False,
    max_waiting: Annotated[int | None, typer.Option(min=1, help="Jobs that may wait.")] = None,
    full: Annotated[str, typer.Option(help="Action when so many wait: raise, or block.")] = "raise",
    timeout: Annotated[float, typer.Option(help="Seconds to try, and to wait for room.")] = 45.0,
    create: Create = False,
    in_json: Json = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Add jobs from the arguments or from the lines of a file.

    Without arguments and --file they are the lines of standard input. Put -- before payloads that
    begin with a dash.

    A line is a payload without its line ending (LF or CRLF), any bytes. Empty lines are skipped.
    With --jsonl a line is an object with a "payload", and perhaps "id", "delay" (seconds),
    "priority", "cost" and "headers" (text to text). A payload that is no string is kept as compact
    JSON. Any other field, and a line that is no such object, is an error that names the line.

    A file, also as standard input, is checked to its end before anything is enqueued. A pipe is
    enqueued in parts: a bad line ends it, nothing of its part is enqueued, and the message names
    the last line whose job is in. With an "id" in every line an interrupted command can be
    repeated: jobs that are still in the queue are not added twice. With --unique-for in both runs,
    neither are jobs that were completed in that time.

    With --json a line for each job has its id, and whether it was added.
    """
    with reported():
        if payloads and (file is not None or jsonl):
            raise ConfigurationError(
                "give payloads as arguments, or lines with --file or --jsonl, not both"
            )
        if id is not None and len(payloads or ()) != 1:
            raise ConfigurationError(
                "--id is for a single payload; in lines, give ids with --jsonl"
            )
        if jsonl and (delay is not None or header or priority or cost is not None):
            raise ConfigurationError(
                "with --jsonl, delay, headers, priority and cost are in the lines"
            )
        if id is None and (debounce or max_wait or throttle or replace):
            raise ConfigurationError(
                "--debounce, --max-wait, --throttle, --replace: give --id, whose job it is about"
            )
        headers = dict(map(header_of, header or ())) or None
        if_exists = _if_exists(debounce, max_wait, throttle, replace=replace)
        template = NewJob(b"", id, headers, delay, priority, if_exists=if_exists, cost=cost)
        options = QueueOptions(
            priorities=priorities,
            max_waiting=max_waiting,
            full=cast("Any", full),
            unique_for=unique_for,
            timeout=timeout,
        )
        with (
            nullcontext() if payloads else _opened(file) as stream,
            opened(
                name, url, namespace, create=create, new_levels=priority + 1, **options
            ) as queue,
        ):
            jobs = [attrs.evolve(template, payload=bytes_of(text)) for text in payloads or ()]
            _check(queue, jobs or [template])
            if stream is None:
                Enqueuing(queue, ids, in_json).run([Batch(jobs)])
                return
            reader = Reader(stream, queue, jsonl, None if template == NewJob(b"") else template)
            Enqueuing(queue, ids, in_json, f"{file}, " if file not in (None, "-") else "").run_file(
                reader
            )


def _if_exists(
    debounce: float | None, max_wait: float | None, throttle: float | None, *, replace: bool
) -> Debounce | Throttle | Replace | None:
    try:
        if throttle is not None:
            if debounce is not None or replace:
                raise ConfigurationError(
                    "--throttle excludes --debounce and --replace: give one of them"
                )
            return Throttle(throttle)
        if debounce is not None:
            return Debounce(debounce, max_wait=max_wait, replace=replace)
        if max_wait is not None:
            raise ConfigurationError("--max-wait: it bounds --debounce: give that, too")
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    return Replace() if replace else None


def header_of(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise ConfigurationError(f"--header {text!r}: give NAME=TEXT")
    return name, value


def _check(queue: Queue, jobs: Iterable[NewJob]) -> None:
    try:
        for job in jobs:
            InnerQueue(queue).encoded(job, conditions=True)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(str(error)) from None


@contextmanager
def _opened(file: str | None) -> Generator[IO[bytes], None, None]:
    if file is not None and file != "-":
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(path_of(file).open("rb"))
            except OSError as error:
                raise ConfigurationError(f"{file}: {error.strerror}") from None
            yield stream
    elif sys.__stdin__ is None or (file is None and sys.__stdin__.isatty()):
        raise ConfigurationError(
            "nothing to enqueue: give payloads, --file FILE, or lines on standard input"
        )
    else:
        yield cast("IO[bytes]", sys.__stdin__.buffer)
