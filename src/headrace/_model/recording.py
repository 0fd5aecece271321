"""Recordings of runs, as lines of JSON. `headrace runs export` writes them, and a replay reads
them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from headrace._model.job import shortened
from headrace._model.steps import Record
from headrace.errors import ConfigurationError

FORMAT = 1  # of the lines
IN_BASE64 = "_base64"  # ends the name of bytes that are no UTF-8


@frozen
class Recording:
    """A run as it was at a moment (`at`, seconds of the server): its job and its records. Payload
    and values are as the queue's codec has written them.
    """

    queue: str
    id: str
    state: str
    payload: bytes = field(repr=shortened)
    records: Sequence[Record] = field(repr=shortened)
    at: float
    headers: Mapping[str, str] = field(factory=dict[str, str], repr=shortened)
    attempt: int = 1
    enqueued_at: float = 0.0

    @property
    def line(self) -> str:
        """The run as one line of JSON."""
        head = {
            "format": FORMAT,
            "queue": self.queue,
            "id": self.id,
            "state": self.state,
            "at": self.at,
            "attempt": self.attempt,
            "enqueued_at": self.enqueued_at,
            "headers": dict(self.headers),
        }
        rows = [_row(record) for record in self.records]
        return json.dumps({**head, **_written("payload", self.payload), "records": rows})

    @classmethod
    def of(cls, line: str | bytes) -> Recording:
        """Read a line. Raises `ConfigurationError` for one that `line` has not written."""
        try:
            read: Any = json.loads(line)
        except ValueError as error:
            raise ConfigurationError(
                f"it is not JSON ({error}): give a line of `headrace runs export`"
            ) from None
        if not isinstance(read, dict) or read.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
            raise ConfigurationError(
                f'it has no "format": {FORMAT}: give a line of `headrace runs export` of this version'
            )
        members = _Members(read)  # pyright: ignore[reportUnknownArgumentType]
        headers: dict[str, Any] = members.member("headers", dict)
        if not all(isinstance(value, str) for value in headers.values()):
            raise ConfigurationError('"headers" has a value that is no text')
        return cls(
            queue=members.member("queue", str),
            id=members.member("id", str),
            state=members.member("state", str),
            payload=members.data("payload") or b"",
            records=[
                _record(number, _Members(row, f"record {number}: "))
                for number, row in enumerate(members.member("records", list), 1)
            ],
            at=float(members.member("at", int, float)),
            headers=headers,
            attempt=members.member("attempt", int),
            enqueued_at=float(members.member("enqueued_at", int, float)),
        )


@frozen
class _Members:
    value: Any
    where: str = ""

    def member(self, name: str, *kinds: type) -> Any:
        found: Any = self.value.get(name) if hasattr(self.value, "get") else None
        if not isinstance(found, kinds) or isinstance(found, bool):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigurationError(
                f'{self.where}"{name}" must be of type {wanted}, not {type(found).__name__}'
            )
        return found

    def moment(self, name: str) -> int:
        seconds: float = self.member(name, int, float)
        return round(seconds * 1000)

    def optional(self, name: str) -> str:
        return str(self.member(name, str)) if self.value.get(name) is not None else ""

    def data(self, name: str) -> bytes | None:
        if self.value.get(name) is not None:
            return bytes(self.member(name, str).encode())
        if self.value.get(name + IN_BASE64) is None:
            return None
        try:
            return base64.b64decode(self.member(name + IN_BASE64, str), validate=True)
        except ValueError as error:
            raise ConfigurationError(f'{self.where}"{name}{IN_BASE64}": {error}') from None


def _written(name: str, data: bytes | None) -> dict[str, str]:
    if data is None:
        return {}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name + IN_BASE64: base64.b64encode(data).decode()}


def _row(record: Record) -> dict[str, Any]:
    return {
        "name": record.name,
        "kind": record.kind,
        "began": record.began / 1000,
        "ended": record.ended / 1000,
        "due": record.due / 1000,
        "attempt": record.attempt,
        **_written("value", record.value),
        **({"child": record.child, "queue": record.queue} if record.child else {}),
        **({"outcome": record.outcome} if record.outcome else {}),
    }


def _record(number: int, row: _Members) -> Record:
    return Record(
        number,
        row.member("name", str),
        row.member("kind", str),
        row.moment("began"),
        row.moment("ended"),
        row.member("attempt", int),
        row.data("value"),
        row.moment("due"),
        outcome=row.optional("outcome"),
        child=row.optional("child"),
        queue=row.optional("queue"),
    )
