"""Jobs from lines and from JSON lines.

A line is a payload without its line ending (LF or CRLF); empty lines are skipped. A JSON line is an object with
`payload`, and perhaps `id`, `delay` (seconds), `priority` and `headers` (text to text). A payload that is a string is
its text in UTF-8; any other is kept as compact JSON, as `JSONCodec` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import IO, Any, cast

from attrs import define, evolve

from headrace._model.job import NewJob
from headrace._protocol.queue_ops import Ops
from headrace.errors import ConfigurationError

READ_BYTES = 1 << 20  # at a time
FIELDS = ("payload", "id", "delay", "priority", "headers")


class BadLineError(ConfigurationError):
    """A line that is not a job."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number}: {why}")
        self.number, self.why = number, why


@define
class Part:
    """Some jobs, payloads or `NewJob`s, and the number of the last line among them; 0 if they come from no lines."""

    jobs: list[Any]
    line: int = 0


@define
class Reader:
    """Reader of jobs from a stream of bytes. *template*: all but the payload of the jobs of plain lines."""

    stream: IO[bytes]
    ops: Ops
    jsonl: bool = False
    template: NewJob | None = None
    line: int = 0  # the last one that was read
    size: int = 0  # bytes read so far

    def parts(self) -> Iterator[Part]:
        """Yield the jobs of each read, so that no job waits for a full part. `BadLineError`: no job of that part."""
        for lines in self._lines():
            jobs: list[Any] = []
            for text in lines:
                self.line += 1
                if line := text.removesuffix(b"\r"):
                    jobs.append(self._job(line))
            if jobs:
                yield Part(jobs, self.line)

    def check(self) -> Iterator[int]:
        """Read all of a file, then rewind; yields the bytes read so far. Raises `BadLineError`."""
        start = self.stream.tell()
        for _ in self.parts():
            yield self.size
        self.stream.seek(start)
        self.line = self.size = 0

    def _lines(self) -> Iterator[list[bytes]]:
        """Yield whole lines, as many as are there."""
        begun: list[bytes] = []  # of a line whose end is still to come
        read: Any = getattr(self.stream, "read1", self.stream.read)  # what is there, without waiting for more
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
            self.ops.item(job)
        except (ValueError, TypeError, RecursionError) as error:
            raise BadLineError(self.line, str(error)) from None
        return job


def parse(line: bytes) -> NewJob:
    """Parse one JSON line. Raises `ValueError` or `TypeError` with the reason."""
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
            payload = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = payload.encode()
    except UnicodeEncodeError:
        raise ValueError("payload is not valid Unicode") from None
    return NewJob(data, **{name: values[name] for name in FIELDS[1:] if name in values})


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
