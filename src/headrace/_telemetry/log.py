"""Log events with stable names, on the logger `headrace`, and their lines on standard error.

A message is `<event>: <words>`. Its record has the attributes `event`, `queue`, `job_id`,
`attempt`, `worker` and `error`, as far as the event has them, and `trace_id` and `span_id` of its
span. Above DEBUG, nothing is logged of a job that ends well.

`Worker.run()` and `headrace work` write the lines, as text or as JSON, unless the program has set
up logging. An import never does. Python then writes warnings only.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from headrace import _forks
from headrace._model.job import Claim
from headrace._model.views.texts import LAYOUT, visible
from headrace._telemetry.tracing import ids
from headrace.errors import describe_error, users

log = logging.getLogger("headrace")
_setting_up = _forks.lock()
_FIELDS_OF_ALL = frozenset(
    (*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "whose")
)
# Their levels. What stands above each is on the page of log events, which docs/reference.py writes.
EVENTS = {
    # Its handler raised; when it runs again (`again`), why (`reason`), and the traceback, from
    # your first frame on
    "job_failed": logging.WARNING,
    # Its handler asked for a retry, or there is none for its kind; the same fields
    "job_put_back": logging.INFO,
    # It is back at the front
    "job_released": logging.DEBUG,
    # Its handler releases it again and again without an attempt, so it now waits; logged at the
    # start and whenever the number has doubled
    "releases_slowed": logging.WARNING,
    # It will not be tried again; why (`reason`)
    "job_dead_lettered": logging.ERROR,
    # The codec cannot encode the handler's result, or the server refuses it or is out of memory
    # (once a minute, with their number): the job is complete without
    "result_dropped": logging.ERROR,
    # A `step` of a job is recorded
    "step_done": logging.DEBUG,
    # The undo of a `step` has run
    "step_undone": logging.INFO,
    # A job sleeps, or waits for a signal, in the `step` of this name
    "run_suspended": logging.DEBUG,
    # A delivery continues it
    "run_resumed": logging.DEBUG,
    # A signal came before its job waits for it
    "signal_kept": logging.DEBUG,
    # A job is complete and did not ask for its recorded `step`: its code has changed
    "steps_unused": logging.WARNING,
    # A run waits for builds (`step`) that no living worker has; once an hour
    "build_missing": logging.WARNING,
    # The child process of an isolated handler was killed, or died, in a job: why
    "child_killed": logging.WARNING,
    # The child process of an isolated handler was replaced, after so many jobs or so much memory
    "child_recycled": logging.INFO,
    # Cancelled, deleted, or leased by another worker; the handler is told
    "lease_lost": logging.WARNING,
    # The event loop of an `AsyncWorker` has stood still for longer than a heartbeat: by which
    # `handler`, `where`, for how many `seconds`; once a minute at most
    "loop_blocked": logging.WARNING,
    # It runs again, and after how long
    "loop_unblocked": logging.INFO,
    # Its `queues`, with their handlers and how many run at once, and its `server`, without a
    # password
    "worker_started": logging.INFO,
    # It leases nothing new; how many handlers it waits for (`running`)
    "worker_stopping": logging.INFO,
    # How many jobs it gave back, by queue (`given_back`)
    "worker_stopped": logging.INFO,
    # An operator asks the worker to lease no more jobs of a queue
    "worker_quiet": logging.INFO,
    # It leases jobs of that queue again
    "worker_resumed": logging.INFO,
    # It runs another number of handlers of a queue at once, as an operator asks
    "worker_resized": logging.INFO,
    # An operator asks its program to stop
    "worker_asked_to_stop": logging.INFO,
    # A worker stopped while its server was away, with the jobs that it still held
    "leases_left": logging.ERROR,
    # By its peers; it is back under another name
    "worker_declared_dead": logging.ERROR,
    # By this worker
    "peers_declared_dead": logging.WARNING,
    # How many are back at the front
    "jobs_reclaimed": logging.INFO,
    # The queue is new, or lost its consumer group
    "group_created": logging.INFO,
    # Once, and again after 10, 20, 40, … seconds, up to every 15 minutes
    "connection_lost": logging.WARNING,
    # And after how long
    "connection_restored": logging.INFO,
    # Sentinel names another primary: connections to the former one are closed at once
    "primary_changed": logging.INFO,
    # Settlements of a worker with `durable=` were not confirmed; once a minute at most
    "not_durable": logging.WARNING,
    # The server does not let us subscribe
    "not_heard": logging.WARNING,
    # Forward or back, by more than a second between two leases: once a jump, for each queue of a
    # process
    "server_clock_jumped": logging.WARNING,
    # A queue has more priority levels than this worker knows: jobs of the others wait for a worker
    # that knows them; once for each number
    "levels_unknown": logging.ERROR,
    # A schedule that this worker cannot enqueue
    "schedule_failed": logging.ERROR,
    # A schedule declared by tasks has ended
    "schedule_ended": logging.INFO,
    # A producer's or this worker's options differ from the declared ones: declare them once
    "declaration_differs": logging.WARNING,
    # A header that `fair` or `limits` name, which none of the first hundred jobs of this worker
    # had
    "key_unknown": logging.WARNING,
    # A queue has other terms now, and this worker goes on with them
    "terms_changed": logging.INFO,
    # A queue has other terms than this worker declares, which obeys the queue's
    "terms_differ": logging.WARNING,
    # Follow-ups for another shard cannot be sent now, and wait in their outbox; once a minute at
    # most
    "handing_failed": logging.ERROR,
    # The ends of children of runs in another slot can't be fetched now, and wait there; once a
    # minute at most
    "ends_unfetched": logging.ERROR,
    # A row of an outbox in SQL can't be a job; it stays there with the reason
    "outbox_row_refused": logging.ERROR,
    # A relay can't move rows now, and tries again; once a minute at most
    "relay_failed": logging.ERROR,
    # A task of Django that could not be sent after the commit: it is lost
    "task_not_sent": logging.ERROR,
    # The database does not tell a relay of commits, as behind a pooler: it looks every 0.2 s
    "relay_not_told": logging.WARNING,
    # An exception of a worker's `on_stop` hook
    "hook_failed": logging.ERROR,
    # An action in the pages: `action`, `queue`, `by` whom, and the `number` of jobs
    "web_action": logging.INFO,
    # The error that ends the worker
    "role_failed": logging.ERROR,
    # A propagator or an SDK raised; the job runs without a span
    "tracing_failed": logging.WARNING,
}


def log_event(
    event: str,
    words: str,
    *args: object,
    claim: Claim | None = None,
    span: Any = None,
    error: BaseException | None = None,
    level: int | None = None,
    **fields: Any,
) -> None:
    """Log an event of the job *claim*, if given, in *span*, by default the current one.

    An exception of a log handler does not end a worker.
    """
    level = EVENTS[event] if level is None else level
    if not log.isEnabledFor(level):
        return
    if claim is not None:
        job = claim.job
        fields = {
            "queue": job.queue,
            "job_id": job.id,
            "attempt": job.attempt,
            "worker": claim.worker,
            **fields,
        }
    if error is not None:
        fields.setdefault("error", describe_error(error))
    text = f"{event}: {words}"
    with suppress(Exception):
        raised = None if error is None else (type(error), error, users(error))
        log.log(level, text, *args, exc_info=raised, extra={"event": event, **fields, **ids(span)})


class TextLines(logging.Formatter):
    """Lines with time, level, event and words.

    They name another logger than ours and, with *process*, the number of the process.
    """

    def __init__(self, *, process: bool = False) -> None:
        number = " %(process)d" if process else ""
        super().__init__(f"%(asctime)s{number} %(levelname)s %(whose)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Format the record. Our lines have texts of the server, whose characters no terminal
        should obey.
        """
        text = super().format(record)
        return visible(text, keep=LAYOUT) if record.name.partition(".")[0] == log.name else text

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.whose = "" if record.name == log.name else f"{record.name}: "
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """Lines of one JSON object each, with `time`, `level`, `logger`, `message`, `error`,
    `traceback` and all extra fields.

    A field without a value is left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _FIELDS_OF_ALL}
        message = record.getMessage()
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": fields.get("event"),
            "message": message.removeprefix(f"{fields.get('event')}: "),
            "process": record.process,
            **fields,
        }
        line = {name: value for name, value in found.items() if value is not None}
        if record.exc_info and record.exc_info[1] is not None:
            line.setdefault("error", describe_error(record.exc_info[1]))
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class StderrHandler(logging.StreamHandler[Any]):
    """The handler that `configure_logging` adds. It removes itself when the program sets up
    logging.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(TextLines())
        self._level = log.level  # the program's own, if it set one
        if self._level == logging.NOTSET:
            log.setLevel(logging.INFO)

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record, unless the program's own handlers do."""
        if logging.root.handlers or any(one is not self for one in log.handlers):
            # a new list: the old one is walked now
            log.handlers = [one for one in log.handlers if one is not self]
            log.setLevel(self._level)
            return False
        return super().handle(record)


def configure_logging() -> None:
    """Write our log lines to standard error, from INFO on, unless the program has set up
    logging."""
    with _setting_up:
        if not log.hasHandlers() and log.propagate:
            log.addHandler(StderrHandler())
