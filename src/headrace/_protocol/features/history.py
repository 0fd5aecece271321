"""The attempts and the ends of jobs, as the history keeps them."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from headrace._model.event import ENDS
from headrace._model.state import Attempt, JobState
from headrace._protocol.replies import decoded_number, text

_HOW = {-1: "again", 0: "there", 1: "gone", 2: "gone, or dead"}


@frozen
class Ended:
    """The end of a job. `state` is one of `ENDS`, and then the data of the history is here too. It
    is `there` if the job has not ended. It is `gone` or `gone, or dead` if nothing else is known.
    It is `again` if the caller must ask again.
    """

    state: str
    with_result: bool = False
    reason: str | None = None


@frozen
class Tried:
    """The attempts of a job, the oldest first. `ran` has the seconds that the deliveries of a run
    took, or `None` if the job was no run. `before` has the seconds of the attempts before it was a
    run.
    """

    attempts: tuple[Attempt, ...]
    ran: float | None = None
    before: float = 0.0

    @classmethod
    def of(cls, kept: str) -> Tried:
        """Decode the field of a job. Skip any attempt that can't be read."""
        found = list[Attempt]()
        ran = None
        before = 0.0
        for row in kept.split("\x1e"):
            parts = row.split("\x1f")
            if len(parts) == 7:  # as `add_attempt` writes them
                number, began, ended = map(decoded_number, parts[:3])
                worker, error, reason, traceback = (part or None for part in parts[3:])
                found.append(
                    Attempt(
                        number, began / 1000 or None, ended / 1000, worker, error, reason, traceback
                    )
                )
                before += (found[-1].took or 0.0) if ran is None else 0.0
            elif len(parts) == 2 and parts[0] == "ran":
                ran = decoded_number(parts[1]) / 1000
        return cls(tuple(found), ran, before)

    def beside(self, deliveries: str) -> Tried:
        """Add the suspended deliveries of a run, as `runs.delivered` keeps them."""
        ran, *rows = deliveries.split("\x1e")
        if not ran:
            return self
        every = list(self.attempts)
        for row in rows:
            parts = row.split("\x1f")
            if len(parts) == 4:
                number, began, ended = map(decoded_number, parts[:3])
                every.append(
                    Attempt(number, began / 1000 or None, ended / 1000, parts[3], suspended=True)
                )
        every.sort(key=lambda one: one.ended)
        return Tried(tuple(every), decoded_number(ran) / 1000, self.before)

    def ended(self, last: Attempt) -> Tried:
        ran = None if self.ran is None or last.took is None else self.ran + last.took
        return Tried((*self.attempts, last), ran, self.before)

    def told(self, state: JobState[Any], deliveries: int) -> JobState[Any]:
        took = None if self.ran is None else self.ran + self.before
        if took is None and self.attempts:
            took = self.attempts[-1].took
        return evolve(state, attempts=self.attempts, deliveries=deliveries, took=took)


def ended(reply: Any) -> list[Ended]:
    return [Ended(_HOW[one]) if isinstance(one, int) else _end(text(one)) for one in reply]


def _end(kept: str) -> Ended:
    state, _, _, with_result, _, reason, *_ = [*kept.split(" ", 5), "", "", "", "", "", ""]
    return Ended(state if state in ENDS else "gone", with_result == "1", reason or None)
