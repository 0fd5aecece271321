"""The logging of `headrace work`: its least level, and its form: text, or a JSON object a line."""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen

from headrace._cli.console import say, say_in_json
from headrace._telemetry import lines


class LogLevel(StrEnum):
    """The least level of log lines."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class LogFormat(StrEnum):
    """The form of log lines."""

    TEXT = "text"
    JSON = "json"


@frozen
class Logs:
    """The options of the command; `None`: not given."""

    level: LogLevel | None = None
    form: LogFormat | None = None

    def packed(self) -> str:
        """Return an argument for a process, which `unpacked` takes."""
        return f"{self.level or ''},{self.form or ''}"

    @classmethod
    def unpacked(cls, argument: str) -> Logs:
        """Take the options from an argument."""
        level, _, form = argument.partition(",")
        return cls(LogLevel(level) if level else None, LogFormat(form) if form else None)

    def apply_to_us(self) -> None:
        """Give the lines of this program itself their form."""
        if self.form is LogFormat.JSON:
            say_in_json()

    def apply_to_logging(self, target: str) -> None:
        """Set up logging, unless *target* has done so when it was imported."""
        done = lines.set_up(self.level or LogLevel.INFO, self.form or LogFormat.TEXT)
        if not done and (self.level or self.form):
            say(f"{target} has set up logging itself: --log-level and --log-format change nothing there", "WARNING")
