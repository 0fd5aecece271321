"""The choice of jobs in a list, by kind, header, texts and time, among the texts that may be
shown."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from attrs import field, frozen

from headrace._core.views.redaction import Redaction
from headrace._model.checks import LAST_MOMENT_S
from headrace._model.event import ENDS
from headrace._model.job import Job
from headrace._model.state import JobState
from headrace._model.views.texts import bounded

DATED = ("dead", "ended")  # lists that are sorted by time
ORDERS = ("oldest", "newest")


def _optional_text(_: Any, attribute: Any, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{attribute.name} must be a str, not {type(value).__name__}")


def _header(value: str | None) -> tuple[str, str] | None:
    name, equals, wanted = (value or "=").partition("=")
    if value and not (name and equals):
        raise ValueError(f"header {value!r:.100}: give name=value")
    return (name, wanted) if name else None


def _moment(value: object) -> float | None:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("since and until: give a datetime with a time zone")
        return value.timestamp()
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"since and until are seconds or datetimes, not {type(value).__name__}")
    if not 0 <= value <= LAST_MOMENT_S:
        raise ValueError(f"since and until are seconds from 1970 on, not {value}")
    return value


@frozen
class Choice:
    """The jobs that a list shows. If nothing is given, these are all jobs."""

    kind: str | None = field(default=None, validator=_optional_text)
    end: str | None = None
    header: str | None = field(default=None, validator=_optional_text)
    reason: str | None = field(default=None, validator=_optional_text)
    payload: str | None = field(default=None, validator=_optional_text)
    since: float | None = field(default=None, converter=_moment)
    until: float | None = field(default=None, converter=_moment)
    order: str = ORDERS[0]

    def check(self, state: str) -> None:
        """Raise `ValueError` for a choice that a list of *state* does not have."""
        if self.end and state != "ended":
            raise ValueError(f"end is for jobs that have ended, not for the state {state!r}")
        if self.end and self.end not in ENDS:
            raise ValueError(f"end={self.end!r:.100}: give one of {', '.join(ENDS)}")
        if self.order not in ORDERS:
            raise ValueError(f"order {self.order!r:.100}: give one of {', '.join(ORDERS)}")
        if self.newest and state not in DATED:
            raise ValueError(
                f"order 'newest' is for jobs that are dead or have ended, not for the state {state!r}"
            )
        _header(self.header)

    @property
    def newest(self) -> bool:
        return self.order == "newest"

    @property
    def narrow(self) -> bool:
        texts = self.kind, self.end, self.header, self.reason, self.payload
        return any(texts) or self.since is not None or self.until is not None

    def first_cursor(self, state: str) -> str:
        first = self.until if self.newest else self.since
        if first is None or state not in DATED:
            return ""
        ms = max(0, int(first * 1000))
        if state == "ended":
            return f"{ms} "
        return f"{ms}" if self.newest else f"{ms}-0"

    def is_over(self, state: str, last: JobState[Any]) -> bool:
        if state not in DATED or last.since is None:
            return False
        if self.newest:
            return self.since is not None and last.since < self.since
        return self.until is not None and last.since > self.until

    def fits(self, one: JobState[Any], showing: Redaction) -> bool:
        """Tell whether the list shows a job. Texts are compared as they are shown."""
        return (
            self._is_of_time(one)
            and (not self.end or one.state == self.end)
            and (not self.kind or showing.kind(one.job) == self.kind)
            and self._has_header(one.job, showing)
            and self._has_texts(one, showing)
        )

    def _is_of_time(self, one: JobState[Any]) -> bool:
        if self.since is None and self.until is None:
            return True
        at = one.since if one.state in ENDS else one.enqueued_at
        return (
            at is not None
            and (self.since or 0.0) <= at
            and (self.until is None or at <= self.until)
        )

    def _has_header(self, job: Job[Any], showing: Redaction) -> bool:
        name, value = _header(self.header) or ("", "")
        if not name:
            return True
        return (
            name in job.headers and showing.text(f"header {name}", job.headers[name], job) == value
        )

    def _has_texts(self, one: JobState[Any], showing: Redaction) -> bool:
        if self.reason:
            shown = showing.text("reason", one.reason, one.job) if one.reason else ""
            if self.reason not in bounded(shown, 2000)[0]:
                return False
        if not self.payload:
            return True
        text = showing.payload(one.job, one.job.payload, "payload").text
        return self.payload in text or self.payload in " ".join(text.split())


EVERYTHING = Choice()
