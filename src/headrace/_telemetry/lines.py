"""Log lines on standard error, where the program has set up no logging: as text, or a JSON object a line.

`Worker.run()` and `headrace work` call for them; an import never does. Elsewhere warnings reach Python's last resort.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from headrace import _forks
from headrace._model.views import LAYOUT, visible
from headrace._telemetry.log import log
from headrace.errors import said

_PLAIN = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))  # what any record has
_setting_up = _forks.lock()


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
    """One JSON object a line: `time`, `level`, `logger`, `message`, `error` and `traceback`, and all extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one line."""
        fields = {name: value for name, value in vars(record).items() if name not in _PLAIN and name != "whose"}
        message = record.getMessage()
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": fields.get("event"),
            "message": message.removeprefix(f"{fields.get('event')}: "),
            "process": record.process,
            **fields,
        }
        if record.exc_info and record.exc_info[1] is not None:
            line.setdefault("error", said(record.exc_info[1]))
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class StderrHandler(logging.StreamHandler[Any]):
    """The handler that `configure_logging` adds: it goes as soon as the program sets up logging itself."""

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
