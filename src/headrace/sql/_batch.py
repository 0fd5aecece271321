"""The rows that a relay moves at once. They are read, made jobs, and deleted when their queue has
answered.

A row's id is its job's, and it is deleted after the queue has answered. So a relay may be killed at
any point. The next one sends the row again. The queue then drops it, for a day from when it was
sent first, however the job has ended.

- PostgreSQL: a relay locks its rows until it has deleted them. Others skip these, and leave later
  rows of their keys.
- SQLite: nothing is locked while Redis is asked, as that would stop all that write to the database.
  Two relays at once send the same rows in the same order, which is twice the work, and the same
  jobs.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import define, evolve, field
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.expression import TextClause

from headrace import NewJob
from headrace.errors import ConfigurationError, NotDurable
from headrace.platform import (
    LIMITS,
    Address,
    BaseReceipt,
    InnerQueue,
    OutboxView,
    checks,
    log_event,
)
from headrace.sql._rows import job_of, reason_of
from headrace.sql._tables import VERSION, require_table, statement, wake_of
from headrace.sql.dialects import require_dialect

SEND_WITHIN_S = 30.0  # seconds for which the queue is asked, while rows are locked
POLL_S = 0.2  # seconds between two looks for rows, where the database tells nothing
NOTIFIED_POLL_S = 5.0  # … where it does: for rows of programs that do not notify
# batches that follow each other, before one begins with the first row: it may be a late commit's
FOLLOWING = 16

TAKE = """
    SELECT position, job_id, payload, headers, priority, job_key, delay_ms, due_ms, {now} - written_ms AS waited_ms
    FROM {outbox}
    WHERE {of} AND refused IS NULL AND version <= :version AND position > :after
    ORDER BY position LIMIT :limit {lock}
"""
POSITIONS = """
    SELECT position FROM {outbox}
    WHERE {of} AND refused IS NULL AND version <= :version AND position > :after
    ORDER BY position LIMIT :limit
"""
RELAY = f"{socket.gethostname()[:80]}:{os.getpid()}"
BOUND_IDLE = text("SELECT set_config('idle_in_transaction_session_timeout', :ms, true)")
MEASURE = """
    SELECT
        (SELECT COUNT(*) FROM (SELECT 1 FROM {outbox} WHERE {of} AND refused IS NULL LIMIT :most) AS waiting),
        (SELECT {now} - written_ms FROM {outbox} WHERE {of} AND refused IS NULL ORDER BY position LIMIT 1),
        aside.number, aside.first
    FROM (
        SELECT COUNT(*) AS number, MIN(position) AS first
        FROM (SELECT position FROM {outbox} WHERE {of} AND refused IS NOT NULL LIMIT :most) AS refused
    ) AS aside
"""
OTHERS = """
    SELECT job_key, MIN(position) AS position FROM {outbox}
    WHERE {of} AND refused IS NULL AND job_key IN :keys AND position < :last AND position NOT IN :ours
    GROUP BY job_key
"""
DELETE = {
    "postgresql": ("DELETE FROM {outbox} WHERE position = ANY(:ours)",),
    "sqlite": ("DELETE FROM {outbox} WHERE position IN :ours", "ours"),
}
REASON = "SELECT refused FROM {outbox} WHERE position = :position"
REFUSE = "UPDATE {outbox} SET refused = :why WHERE position = :position"


def sender(queue: Any, kind: type[Any], address: Address | None = None) -> Any:
    """Return *queue* for payloads that are encoded already, with its connections, or on
    *address*."""
    if address is None and not isinstance(queue, kind):
        raise ConfigurationError(
            f"the outbox of {queue!r} is relayed by the function of its colour: relay_once for a Queue, "
            "relay_once_async for an AsyncQueue"
        )
    return InnerQueue(queue).raw(kind, address)


def own_sender(queue: Any, kind: type[Any], where: Address | None) -> Any:
    """Like `sender`, with connections of its own, on the queue's server, or *where* if it names
    none.

    Raises `ConfigurationError` for a client of the other colour.
    """
    at = InnerQueue(queue).address
    if at.client is not None and not isinstance(queue, kind):
        raise ConfigurationError(
            f"{queue!r} has a client, which this relay can't use: give the queue a URL"
        )
    if at.url is None and at.client is None and where is not None:
        at = where
    return sender(queue, kind, Address(at.url, at.client))


Row = tuple[Mapping[str, Any], NewJob[bytes]]


@define(eq=False)
class Batch:
    name: str
    queue: Any  # for payloads that are encoded already
    schema: str | None = None  # of the table
    positions: list[int] = field(factory=list[int])
    jobs: list[NewJob[bytes]] = field(factory=list[NewJob[bytes]])
    # of the jobs, in their order; `None`: it may be missing
    receipts: list[Any] = field(factory=list[Any])
    refused: list[dict[str, Any]] = field(factory=list[dict[str, Any]])
    waited: list[int] = field(factory=list[int])  # ms since the rows of the jobs were written
    after: int = 0  # begin behind this position, as deleted rows before it need not be passed again
    following: int = 0  # where a batch that follows at once may begin
    # whether rows are left for other relays, as earlier ones of their keys are theirs
    left: bool = False

    @property
    def found(self) -> bool:
        return bool(self.jobs or self.refused)

    @property
    def wake(self) -> str:
        return wake_of(**self._names)

    @property
    def one_by_one(self) -> bool:
        """Whether jobs go one by one, as shards take conditions of single jobs only."""
        return bool(InnerQueue(self.queue).settings.shards > 1)

    def take(self, connection: Connection, limit: int) -> None:
        """Begin a transaction, and read the oldest rows. On SQLite the transaction ends before this
        returns."""
        checks.count("limit", limit, most=10 * LIMITS.jobs_per_script)
        if connection.in_transaction():
            raise ConfigurationError(
                "a relay begins its own transactions: give it a connection that is in none"
            )
        require_dialect(connection.dialect.name)
        connection.begin()
        try:
            self._read(connection, connection.dialect.name, limit)
        except BaseException:
            connection.rollback()
            raise

    def _read(self, connection: Connection, dialect: str, limit: int) -> None:
        require_table(connection, "headrace_outbox", self.schema)
        if dialect == "postgresql":
            # a relay that does nothing for so long is frozen
            connection.execute(BOUND_IDLE, {"ms": str(checks.millis(2 * SEND_WITHIN_S))})
        taking = self._statement(connection, TAKE)
        given = {**self._names, "version": VERSION, "limit": limit, "after": self.after}
        # rows that other relays, or later ones, are to move may stand before rows of other keys
        for _ in range(10):
            rows, last, full = self._page(connection, taking, given)
            others = self._others(connection, rows)
            for row, job in rows:
                if row["position"] < others.get(job.key, row["position"] + 1):
                    self._add(row, job)
                else:
                    self.left = True
            if not full:
                self.following = 0
                break
            self.following = given["after"] = last
            if self.found:
                break
        if dialect == "sqlite":
            connection.commit()

    def _statement(self, connection: Connection, source: str, *lists: str) -> TextClause:
        return statement(source, connection.dialect.name, self.schema, *lists)

    @property
    def _names(self) -> dict[str, str]:
        return {"namespace": InnerQueue(self.queue).namespace, "queue": self.queue.name}

    def _page(
        self, connection: Connection, taking: Any, given: dict[str, Any]
    ) -> tuple[list[Row], int, bool]:
        """Read a page of rows, and refuse rows that are no jobs.

        Return the rows with their jobs, the last position, and whether there may be more.
        """
        found: list[Any] = []
        try:
            found += connection.execute(taking, given).mappings().all()
            read = [row["position"] for row in found]
        except DBAPIError:
            if connection.dialect.name != "sqlite":
                raise
            # SQLite may hold a text that is not UTF-8, which its driver can't read.
            read = [*connection.execute(self._statement(connection, POSITIONS), given).scalars()]
            for position in read:
                found += self._one(connection, taking, given, position)
        rows: list[Row] = []
        for row in found:
            try:
                rows.append((row, job_of(row)))
            except Exception as error:
                self.refuse(row["position"], row["job_id"], error)
        return rows, max(read, default=0), len(read) == given["limit"]

    def _one(
        self, connection: Connection, taking: Any, given: Mapping[str, Any], position: int
    ) -> Sequence[Any]:
        try:
            return (
                connection.execute(taking, {**given, "after": position - 1, "limit": 1})
                .mappings()
                .all()
            )
        except DBAPIError as error:
            self.refuse(position, None, error)
            return []

    def _others(self, connection: Connection, rows: Sequence[Row]) -> dict[str | None, int]:
        """Map each key to its first row that is not ours. Another relay holds that row, or a later
        one is to move it.
        """
        keys = {job.key for _, job in rows if job.key is not None}
        if not keys:
            return {}
        ours = [row["position"] for row, _ in rows]
        asking = self._statement(connection, OTHERS, "keys", "ours")
        found = connection.execute(
            asking, {**self._names, "keys": sorted(keys), "ours": ours, "last": ours[-1]}
        )
        return {row.job_key: row.position for row in found}

    def _add(self, row: Mapping[str, Any], job: NewJob[bytes]) -> None:
        self.positions.append(row["position"])
        self.jobs.append(job)
        self.waited.append(row["waited_ms"])

    def wrong(self, job: NewJob[bytes]) -> bool:
        try:
            InnerQueue(self.queue).encoded(evolve(job, if_exists=None))
        except Exception:
            return True
        return False

    def drop(self, number: int, error: Exception) -> None:
        self.refuse(self.positions.pop(number), self.jobs.pop(number).id, error)
        del self.waited[number]

    def refuse(self, position: int, name: object, error: Exception) -> None:
        """Set a row aside. It stays, with the reason, until it is tried again."""
        why = reason_of(error)
        words = "row %s of the outbox of queue %r is no job: %s"
        self.refused.append({"position": position, "why": why})
        log_event(
            "outbox_row_refused", words, position, self.name, why, queue=self.name, job_id=name
        )

    def failed(self, error: Exception) -> None:
        """Keep the receipts of the jobs that are in the queue nevertheless."""
        if not isinstance(error, NotDurable):  # sent again, they wait for it again
            self.receipts = self.receipts or [*getattr(error, "receipts", ())]

    def end(self, connection: Connection) -> None:
        """Delete the rows whose jobs are surely in the queue, and end the transaction."""
        pairs = zip(self.positions, self.receipts, strict=False)
        done = [position for position, receipt in pairs if isinstance(receipt, BaseReceipt)]
        if done:
            connection.execute(
                self._statement(connection, *DELETE[connection.dialect.name]), {"ours": done}
            )
        if self.refused:
            connection.execute(self._statement(connection, REFUSE), self.refused)
        connection.commit()
        InnerQueue(self.queue).record_relayed(waited / 1000 for waited in self.waited[: len(done)])

    def measure(self, connection: Connection) -> OutboxView:
        measuring = self._statement(connection, MEASURE)
        asking = self._statement(connection, REASON)
        try:
            rows, oldest, refused, first = connection.execute(
                measuring,
                {**self._names, "most": 10_000},  # rows, for a report
            ).one()
            why = "" if first is None else connection.execute(asking, {"position": first}).scalar()
        finally:
            connection.rollback()
        named = f"row {first}: {why}"[: LIMITS.shown_characters] if why else ""
        return OutboxView(RELAY, rows, max(0, oldest or 0) / 1000, refused, ended=False, why=named)


@define(eq=False)
class Source:
    """One outbox of a relay, and the time of the next look for its rows."""

    queue: Any  # for payloads that are encoded already
    schema: str | None = None  # of the table
    complaints: Complaints = field(init=False)
    reports: Reports = field(init=False)
    next: float = 0.0  # by the clock of `time.monotonic`

    def __attrs_post_init__(self) -> None:
        self.complaints = Complaints(self.queue.name)
        self.reports = Reports()

    def batch(self, after: int = 0) -> Batch:
        return Batch(self.queue.name, self.queue, self.schema, after=after)

    def due(self, heard: set[str]) -> bool:
        return time.monotonic() >= self.next or self.batch().wake in heard

    def rest(self, seconds: float) -> None:
        self.next = time.monotonic() + seconds

    def looked(self, batch: Batch, poll: float | None, *, told: bool) -> None:
        """Note that rows can be moved, and when the next may be there. *told* says that the
        database tells of commits.
        """
        self.complaints.over()
        usual = NOTIFIED_POLL_S if told and not batch.left else POLL_S
        pause = usual if poll is None else poll
        self.rest(0.0 if batch.found or batch.after else pause)


def by_server(sources: Iterable[Source]) -> list[list[Source]]:
    """Group the outboxes of a relay by their servers. A server that is away holds up no other's
    queues.
    """
    found: dict[Any, list[Source]] = {}
    for source in sources:
        at = InnerQueue(source.queue).address
        found.setdefault((at.url, id(at.client)), []).append(source)
    return [*found.values()]


@define(eq=False)
class Reports:
    """The reports of a relay to its queue."""

    _next: float = 0.0
    _last: OutboxView | None = None

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def of(self, view: OutboxView) -> OutboxView:
        self._next = time.monotonic() + LIMITS.report_every_s
        self._last = evolve(view, ended=True)
        return view

    def last(self) -> list[OutboxView]:
        """Return the report on the end of the relay, or none if it has not reported before."""
        return [] if self._last is None else [self._last]


@define(eq=False)
class Complaints:
    """The errors of a relay that goes on, which are logged once in a while."""

    _queue: str
    _next: float = 0.0
    _number: int = 0

    def add(self, error: Exception) -> float:
        """Log an error, unless the one before was logged a moment ago. Return the seconds until the
        next try."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LIMITS.log_again_s
            words = "rows wait in the outbox of queue %r: %s; trying again"
            log_event("relay_failed", words, self._queue, reason_of(error), queue=self._queue)
        self._number += 1
        return min(NOTIFIED_POLL_S, POLL_S * 2.0 ** min(self._number, 10))

    def over(self) -> None:
        """Note that the relay works. The next error is logged at once."""
        self._number = 0
        self._next = 0.0
