"""Bulk actions, as generators of effects. Each step lists some pages of jobs, and acts on the
matching jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attrs import asdict, frozen

from headrace._core.effects import Call, send, send_each
from headrace._core.queue.calls import by_ids, through
from headrace._core.steps import children
from headrace._model.letters import reason_key
from headrace._model.settings import KIND
from headrace._model.state import JobState
from headrace._model.verbs import Bulk, combination
from headrace._protocol import admin_ops, view_ops
from headrace._protocol.limits import LISTED_PER_SCRIPT
from headrace._protocol.queue_ops import Ops

PAGES_A_STEP = 5  # each of `LISTED_PER_SCRIPT` jobs, or `BYTES_PER_SCRIPT`
Choose = Callable[[Sequence[JobState[Any]]], Call[Sequence[bool]]]


@frozen
class Match:
    """The choice of a bulk action. It takes jobs with the text `reason` in their reason, of this
    `kind`, and in this `group` of dead letters. An empty text means any.
    """

    reason: str = ""
    kind: str = ""
    group: str = ""

    def fits(self, one: JobState[Any]) -> bool:
        kind = one.job.headers.get(KIND, "")
        if self.reason not in (one.reason or "") or self.kind not in ("", kind):
            return False
        return not self.group or reason_key(one.reason or "", kind) == self.group


def bulk(
    ops: Ops, action: str, state: str, match: Match, cursor: str, choose: Choose | None = None
) -> Call[Bulk]:
    """Take *action* for the jobs in *state* that *match*, but only for the jobs of each page that
    *choose* names.

    The cursor begins with the time in ms at which the first step began. Jobs that came later stay.
    Otherwise a job that is redriven and dies again would be redriven for ever.
    """
    action, state = combination(action, state)
    for name, text in (*asdict(match).items(), ("cursor", cursor)):
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a str, not {type(text).__name__}")
    began, _, place = cursor.partition(" ")
    if cursor and not began.isdigit():
        raise ValueError(f"cursor {cursor!r:.100}: give that of the step before")
    looked = matched = done = 0
    for _ in range(PAGES_A_STEP):
        found, place, now, _ = yield from send(
            view_ops.weighed(ops, state, place, LISTED_PER_SCRIPT)
        )
        began = began or f"{now * 1000:.0f}"
        wanted = [_is_meant(one, state, match, int(began)) for one in found]
        looked = looked + len(found)
        matched = matched + sum(wanted)
        if choose is not None and any(wanted):
            chosen = yield from choose(found)
            wanted = [meant and may for meant, may in zip(wanted, chosen, strict=True)]
        done += yield from _act(ops, action, found, wanted)
        if state == "dead" and found and _entry_ms(found[-1]) > int(began):
            place = ""
        if not place:
            return Bulk(looked, matched, done, "")
    return Bulk(looked, matched, done, f"{began} {place}")


def _entry_ms(one: JobState[Any]) -> int:
    # a delayed job has no entry
    number = (one.entry or "").partition("-")[0]
    return int(number) if number.isdigit() and "-" in (one.entry or "") else 0


def _is_meant(one: JobState[Any], state: str, match: Match, began: int) -> bool:
    if state in ("waiting", "dead") and _entry_ms(one) > began:
        return False
    return match.fits(one)


def _act(
    ops: Ops, action: str, found: Sequence[JobState[Any]], wanted: Sequence[bool]
) -> Call[int]:
    ids = [one.job.id for one, is_meant in zip(found, wanted, strict=True) if is_meant]
    match action:
        case "cancel":
            gone = yield from send_each([admin_ops.cancel_run(ops, one) for one in ids])
            yield from children.cancel(ops, children.below(gone))
            return sum(one.number for one in gone)
        case "reschedule":
            return sum(
                (yield from send_each([admin_ops.reschedule(ops, one, None) for one in ids]))
            )
        case "expire":
            return (
                (yield from by_ids(partial(admin_ops.expire, ops), ids, LISTED_PER_SCRIPT))
                if ids
                else 0
            )
        case _:
            # by position: dead letters of one id may have several reasons
            build = (
                partial(admin_ops.redrive, ops)
                if action == "redrive"
                else partial(admin_ops.purge_dead, ops)
            )
            done = 0
            for first, last in _runs(found, wanted):
                done += yield from through(build, (), f"{first} {last}")
            return done


def _runs(found: Sequence[JobState[Any]], wanted: Sequence[bool]) -> list[tuple[str, str]]:
    runs: list[tuple[str, str]] = []
    before = False
    for one, is_meant in zip(found, wanted, strict=True):
        entry = one.entry or ""
        if is_meant and before:
            runs[-1] = (runs[-1][0], entry)
        elif is_meant:
            runs.append((entry, entry))
        before = is_meant
    return runs
