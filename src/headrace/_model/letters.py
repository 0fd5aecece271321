"""The groups of dead letters. A group has letters of one kind whose reasons differ at most in
numbers.
"""

from __future__ import annotations

import hashlib
import re

from attrs import evolve, frozen

from headrace._model.views.jobs import JobView

SPENT = "no attempts left: "  # so begins the reason of a job whose workers died


def common_reason(reason: str) -> str:
    """Return the first line of a reason, without numbers, which the reasons of one cause share."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", reason.strip().partition("\n")[0][:300])


def reason_key(reason: str, kind: str = "") -> str:
    """Return the name of the group of dead letters with this *reason*, of jobs of this *kind*.
    The kind '' stands for none.
    """
    text = f"{common_reason(reason)}\n{kind}" if kind else common_reason(reason)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def cause_first(reason: str) -> str:
    """Put the cause in front of the words that many reasons begin with, for lists, which cut their
    texts."""
    head, _, before = reason.partition("; before that: ")
    if head.startswith(SPENT):
        return (
            f"{cause_first(before)}; {head}"
            if before
            else f"{head.removeprefix(SPENT)}: {SPENT[:-2]}"
        )
    unhandled = re.fullmatch(
        "no handler for jobs of kind (.+?)(: this worker knows .*)?", reason, re.DOTALL
    )
    return f"kind {unhandled[1]} has no handler{unhandled[2] or ''}" if unhandled else reason


@frozen
class DeadGroup:
    """Dead letters of one `kind`, or of none (`None`), whose reasons differ at most in numbers.
    `key` names the group.

    `reason` belongs to the newest letter. `number` counts the letters. `hour` and `day` count the
    letters of the last hour and day. `first` and `last` are the times of the oldest and the newest,
    in seconds of the server's clock. `queues` has the number of letters by queue. `examples` has
    the queues and ids of the newest 20.
    """

    key: str
    reason: str
    number: int
    first: float
    last: float
    kind: str | None
    hour: int
    day: int
    queues: tuple[tuple[str, int], ...]
    examples: tuple[tuple[str, str], ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the newest 20 letters."""
        return tuple(job for _, job in self.examples)


@frozen
class DeadPage:
    """The dead letters of some queues in groups, the newest first. The newest `seen` of `all`
    were looked at.

    `queue` is their queue, or '' if several were asked for. `jobs` are the letters of one group, if
    one was asked for.
    """

    now: float
    queue: str
    groups: tuple[DeadGroup, ...]
    seen: int
    all: int
    jobs: tuple[JobView, ...] = ()

    def only(self, key: str, jobs: tuple[JobView, ...]) -> DeadPage:
        """Return the page of one group, with its letters."""
        return evolve(
            self, groups=tuple(group for group in self.groups if group.key == key), jobs=jobs
        )
