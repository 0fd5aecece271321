"""Log events with stable names, on the logger `headrace`, and their lines on standard error.

A message is `<event>: <words>`; its record has the attributes `event`, `queue`, `job_id`, `attempt`, `worker` and
`error` (as far as the event has them), and `trace_id` and `span_id` of its span. Above DEBUG, nothing is logged of a
job that ends well.

`Worker.run()` and `headrace work` write the lines, as text or as JSON, unless the program has set up logging. An import
never does; then Python writes warnings only.
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
from headrace._model.views import LAYOUT, visible
from headrace._telemetry.tracing import ids
from headrace.errors import describe_error, users

log = logging.getLogger("headrace")
_setting_up = _forks.lock()
_FIELDS_OF_ALL = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "whose"))
EVENTS = {  # their levels
    "job_failed": logging.WARNING,
    "job_put_back": logging.INFO,
    "job_released": logging.DEBUG,
    "releases_slowed": logging.WARNING,
    "job_dead_lettered": logging.ERROR,
    "result_dropped": logging.ERROR,
    "step_done": logging.DEBUG,
    "run_suspended": logging.DEBUG,
    "run_resumed": logging.DEBUG,
    "signal_kept": logging.DEBUG,
    "steps_unused": logging.WARNING,
    "lease_lost": logging.WARNING,
    "loop_blocked": logging.WARNING,
    "loop_unblocked": logging.INFO,
    "worker_started": logging.INFO,
    "worker_stopping": logging.INFO,
    "worker_stopped": logging.INFO,
    "worker_quiet": logging.INFO,
    "worker_resumed": logging.INFO,
    "worker_asked_to_stop": logging.INFO,
    "leases_left": logging.ERROR,
    "worker_declared_dead": logging.ERROR,
    "peers_declared_dead": logging.WARNING,
    "jobs_reclaimed": logging.INFO,
    "group_created": logging.INFO,
    "connection_lost": logging.WARNING,
    "connection_restored": logging.INFO,
    "primary_changed": logging.INFO,
    "not_durable": logging.WARNING,
    "not_heard": logging.WARNING,
    "server_clock_jumped": logging.WARNING,
    "levels_unknown": logging.ERROR,
    "schedule_failed": logging.ERROR,
    "schedule_ended": logging.INFO,
    "declaration_differs": logging.WARNING,
    "key_unknown": logging.WARNING,
    "terms_changed": logging.INFO,
    "terms_differ": logging.WARNING,
    "handing_failed": logging.ERROR,
    "outbox_row_refused": logging.ERROR,
    "relay_failed": logging.ERROR,
    "task_not_sent": logging.ERROR,
    "relay_not_told": logging.WARNING,
    "hook_failed": logging.ERROR,
    "web_action": logging.INFO,
    "role_failed": logging.ERROR,
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
        fields = {"queue": job.queue, "job_id": job.id, "attempt": job.attempt, "worker": claim.worker, **fields}
    if error is not None:
        fields.setdefault("error", describe_error(error))
    text = f"{event}: {words}"
    with suppress(Exception):
        raised = None if error is None else (type(error), error, users(error))
        log.log(level, text, *args, exc_info=raised, extra={"event": event, **fields, **ids(span)})


class TextLines(logging.Formatter):
    """Time, level, event and words; the name of the logger, unless it is ours; with *process*, its number."""

    def __init__(self, *, process: bool = False) -> None:
        number = " %(process)d" if process else ""
        super().__init__(f"%(asctime)s{number} %(levelname)s %(whose)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Format the record. In our lines stand texts of the server, whose characters no terminal should obey."""
        text = super().format(record)
        return visible(text, keep=LAYOUT) if record.name.partition(".")[0] == log.name else text

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Format the line, without a traceback."""
        record.whose = "" if record.name == log.name else f"{record.name}: "
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, `error` and `traceback`, and all extra fields.

    A field without a value is left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one line."""
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
    """The handler that `configure_logging` adds. It removes itself when the program sets up logging."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(TextLines())
        self._level = log.level  # the program's own, if it set one
        if self._level == logging.NOTSET:
            log.setLevel(logging.INFO)

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record, unless the program's own handlers do."""
        if logging.root.handlers or any(one is not self for one in log.handlers):
            log.handlers = [one for one in log.handlers if one is not self]  # a new list: the old one is walked now
            log.setLevel(self._level)
            return False
        return super().handle(record)


def configure_logging() -> None:
    """Write our log lines to standard error, from INFO on, unless the program has set up logging."""
    with _setting_up:
        if not log.hasHandlers() and log.propagate:
            log.addHandler(StderrHandler())


def set_up(level: str, form: str) -> bool:
    """Write all log lines of this process to standard error, as `text` or `json`; false if the program has set up
    logging.
    """
    if log.hasHandlers():
        return False
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines(process=True))
    logging.root.addHandler(handler)
    logging.root.setLevel(level.upper())
    return True
