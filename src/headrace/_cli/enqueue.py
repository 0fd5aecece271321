"""Enqueuing lines from files and standard input, with progress."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext

import redis
from attrs import define
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

import headrace
from headrace._cli.console import INTERRUPTED, say
from headrace._cli.lines import BadLineError, Part, Reader
from headrace._sync.queue import Queue
from headrace.errors import ConfigurationError, HeadraceError


def print_out(text: str) -> None:
    sys.stdout.write(f"{text}\n")


@define
class Feeding:
    """Enqueues parts, shows progress, and reports at the end, however it ends, how many jobs were enqueued."""

    queue: Queue
    ids: bool
    reader: Reader | None = None
    name: str = ""
    added: int = 0
    known: int = 0
    line: int = 0

    def run_file(self) -> None:
        """Enqueue all lines of the reader; those of a regular file are checked first."""
        reader = self.reader
        assert reader is not None  # noqa: S101
        status = os.fstat(reader.stream.fileno())
        regular = stat.S_ISREG(status.st_mode)
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[jobs]}"))
        shown = console.is_terminal and not (self.ids and sys.stdout.isatty())
        bar = Progress(*columns, console=console, transient=True, disable=not shown)
        with bar if shown else nullcontext():  # a disabled one still prints an empty line, in old versions of rich
            task = bar.add_task("enqueuing", total=status.st_size if regular else None, jobs="")
            if regular and reader.jsonl:
                bar.update(task, description="checking")
                with self._told():
                    for size in reader.check():
                        bar.update(task, completed=size)
                bar.update(task, description="enqueuing")
            began = time.monotonic()

            def show() -> None:
                jobs = self.added + self.known
                rate = jobs / max(time.monotonic() - began, 1e-3)
                bar.update(task, completed=reader.size, jobs=f"{jobs:,} jobs, {rate:,.0f}/s")

            self.run(reader.parts(), show)

    def run(self, parts: Iterable[Part], show: Callable[[], None] = lambda: None) -> None:
        """Enqueue all *parts*."""
        began = time.monotonic()
        with self._told():
            for part in parts:
                receipts = self.queue.enqueue_many(part.jobs)
                self._count(receipts)
                self.line = part.line
                show()
                if self.ids:
                    print_out("\n".join(receipt.id for receipt in receipts))
                    sys.stdout.flush()
        seconds = time.monotonic() - began
        rate = (self.added + self.known) / max(seconds, 1e-3)
        text = f"enqueued {self.added} jobs in {seconds:.2f} s, {rate:.0f}/s; {self.known} were there already"
        (say if self.ids else print_out)(text)

    def _count(self, receipts: Sequence[headrace.Receipt]) -> None:
        added = sum(receipt.added for receipt in receipts)
        self.added += added
        self.known += len(receipts) - added

    @contextmanager
    def _told(self) -> Generator[None, None, None]:
        try:
            yield
        except BadLineError as error:
            raise ConfigurationError(f"{self.name}{error}; {self._so_far() or 'nothing was enqueued'}") from None
        except redis.RedisError as error:
            self._count(getattr(error, "receipts", []))
            raise HeadraceError(f"{error}; {self._so_far(least=True)}") from None
        except KeyboardInterrupt:
            say(f"interrupted; {self._so_far(least=True)}")
            raise SystemExit(INTERRUPTED) from None

    def _so_far(self, *, least: bool = False) -> str:
        """Describe how much was enqueued; *least*: the outcome of the last call is unknown."""
        upto = f", up to line {self.line}," if self.line else ""
        if least:
            return f"{self.added} jobs{upto} were enqueued for certain, those of the last call perhaps"
        return f"{self.added} jobs{upto} were enqueued" if self.line else ""
