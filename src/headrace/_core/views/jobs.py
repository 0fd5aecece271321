"""Views of jobs. They list jobs by state, read one job, and search by id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any

from attrs import evolve

from headrace._core.effects import Call, send, send_all, send_each
from headrace._core.queue import calls
from headrace._core.views.catalogue import place
from headrace._core.views.choice import EVERYTHING, Choice
from headrace._core.views.reader import (
    JOBS_SHOWN,
    LOOKED_AT_MOST,
    READ_AT_MOST_BYTES,
    SEARCH_KEPT,
    STATES,
    Reader,
    asked,
)
from headrace._core.views.redaction import duration_of, editable, wait_of
from headrace._model.state import JobState
from headrace._model.steps import Step
from headrace._model.views.jobs import ENDED, JobsPage, JobView, KindsPage, KindView
from headrace._protocol import view_ops
from headrace._protocol.features import results as result_ops
from headrace._protocol.keys import job_id
from headrace._protocol.limits import JOBS_PER_SCRIPT, LISTED_PER_SCRIPT, OPS_PER_TRIP
from headrace._protocol.queue_ops import Ops

Place = tuple[str, str]  # a queue, and the id of a job in it


class JobViews(Reader):
    def jobs(
        self, name: str, state: str, cursor: str, limit: int, choice: Choice = EVERYTHING
    ) -> Call[JobsPage]:
        if state not in STATES and state != "ended":
            raise ValueError(f"state {state!r}: give one of {', '.join(STATES)}, ended")
        choice.check(state)
        # refused before anything is sent
        view_ops.listing(self._ops_factory.whole(name), state, cursor, limit)
        if limit > LISTED_PER_SCRIPT:
            raise ValueError(f"limit {limit}: give at most {LISTED_PER_SCRIPT}")

        def build() -> Call[JobsPage]:
            parts = yield from self._of(name)
            at, inner = place(cursor, len(parts))
            states = list[JobState[Any]]()
            reads = 0
            looked = 0
            size = 0
            now = 0.0
            reads_at_most = 24 if choice.narrow else 8  # calls for a page
            while at < len(parts) and len(states) < limit and reads < reads_at_most:
                if choice.narrow and (looked >= LOOKED_AT_MOST or size >= READ_AT_MOST_BYTES):
                    break
                found, read, inner, now = yield from self._page(
                    parts[at],
                    state,
                    inner or choice.first_cursor(state),
                    limit - len(states),
                    choice,
                )
                states = states + found
                looked = looked + read[0]
                size = size + read[1]
                # a page ends after the parked jobs, after each level, and at 1 MiB
                reads += bool(read[0] or inner)
                at += not inner
            in_parts = f"{at}:{inner}" if at < len(parts) else ""
            more = inner if len(parts) == 1 else in_parts
            return JobsPage(
                now,
                name,
                state,
                tuple(self.showing.job(one, now=now) for one in states),
                more,
                looked,
            )

        fresh = self.fresh * SEARCH_KEPT if choice.narrow else self.fresh
        return (yield from self.kept(("jobs", name, state, cursor, limit, choice), build, fresh))

    def _page(
        self, ops: Ops, state: str, cursor: str, room: int, choice: Choice
    ) -> Call[tuple[list[JobState[Any]], tuple[int, int], str, float]]:
        """Read some jobs of a shard. Return the jobs that are meant, at most *room*, the numbers of
        jobs and bytes that were read, the next cursor, and the server's time.
        """
        most = LISTED_PER_SCRIPT if choice.narrow else room
        while True:
            some, more, now, size = yield from send(
                view_ops.weighed(ops, state, cursor, most, newest=choice.newest)
            )
            found = [one for one in some if choice.fits(one, self.showing)]
            if len(found) <= room:
                over = bool(some) and choice.is_over(state, some[-1])
                return found, (len(some), size), "" if over else more, now
            most = room

    def kinds(self, name: str) -> Call[KindsPage]:
        self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Call[KindsPage]:
            parts = yield from self._of(name)
            kept = any("history" in about.declared for about in self._ops_factory.about(parts))
            states = list[JobState[Any]]()
            now = 0.0
            for ops in parts:
                cursor = ""
                left = JOBS_PER_SCRIPT // len(parts)
                size = 0
                while left > 0 and size < READ_AT_MOST_BYTES // len(parts):
                    some, cursor, now, read = yield from send(
                        view_ops.weighed(
                            ops, "ended", cursor, min(left, LISTED_PER_SCRIPT), newest=True
                        )
                    )
                    states = states + some
                    left = left - len(some)
                    size = size + read
                    if not cursor:
                        break
            ended = [one for one in states if one.state in ("completed", "dead")]
            groups: dict[str | None, list[JobState[Any]]] = {}
            for one in ended:
                groups.setdefault(self.showing.kind(one.job), []).append(one)
            shown = sorted(
                starmap(_kind, groups.items()), key=lambda one: (-one.number, one.kind or "")
            )
            since = min((one.since for one in ended if one.since is not None), default=None)
            return KindsPage(now, name, kept, tuple(shown), len(ended), since)

        return (yield from self.kept(("kinds", name), build, 3 * self.fresh * SEARCH_KEPT))

    def job(self, name: str, id: str) -> Call[JobView | None]:
        self._ops_factory.whole(name)  # refused before anything is sent
        job_id(id)

        def build() -> Call[JobView | None]:
            gone: JobView | None = None
            for ops, its in asked((yield from self._of(name)), id):
                found = yield from self._one(ops, its)
                if found is not None and not found.ended:
                    return found
                gone = gone or found
            return gone

        return (yield from self.kept(("job", name, id), build))

    def _one(self, ops: Ops, id: str) -> Call[JobView | None]:
        shard = None if ops.keys.shard is None else ops.keys.shard.number
        state, token, now, cursor = yield from send(view_ops.seek_delivery(ops, id, ""))
        while state is None and cursor:
            state, token, now, cursor = yield from send(view_ops.seek_delivery(ops, id, cursor))
        if state is None or state.state in ENDED:
            result = yield from send(result_ops.result(ops, id))
            if state is None and result is None:
                return None
            ended = None if state is None else self._with_results(ops.bound, state)
            view = self.showing.gone(ops.keys.queue, id, ended, result)
            value = None if state is None else state.job.payload
            return evolve(view, shard=shard, payload=editable(ops.codec, view.payload, value))
        until = position = None
        if state.state == "leased" and state.entry:
            holding = yield from send(view_ops.lease_of(ops, state.entry))
            until = (
                holding.until if holding is not None and holding.worker == state.worker else None
            )
        if state.state in ("waiting", "parked"):
            position = yield from calls.position(ops, id)
        state = self._with_results(ops.bound, state)
        view = self.showing.job(
            state, token=token or None, until=until, position=position, whole=True, now=now
        )
        return evolve(
            view, shard=shard, payload=editable(ops.codec, view.payload, state.job.payload)
        )

    def descendants(self, steps: Sequence[Step]) -> Call[Mapping[Place, tuple[Step, ...]]]:
        first = _children(steps)

        def build() -> Call[Mapping[Place, tuple[Step, ...]]]:
            found: dict[Place, tuple[Step, ...]] = {}
            level = first
            while level := level[: 2 * JOBS_SHOWN - len(found)]:
                read = yield from self._steps_of(level)
                found |= read
                level = [place for its in read.values() for place in _children(its)]
            return found

        return (yield from self.kept(("descendants", *first), build))

    def _steps_of(self, places: Sequence[Place]) -> Call[dict[Place, tuple[Step, ...]]]:
        names = list(dict.fromkeys(name for name, _ in places))
        parts = yield from self._ops_factory.levelled(names)
        wanted = [(at, one) for at in places for one in asked(parts[at[0]], at[1])]
        states = yield from send_each([view_ops.find(ops, its) for _, (ops, its) in wanted])
        found: dict[Place, tuple[Step, ...]] = dict.fromkeys(places, ())
        for (at, _), state in zip(wanted, states, strict=True):
            if state is not None:
                some = (evolve(step, result=None) for step in state.steps if step.child)
                found[at] = tuple(some)
        return found

    def find(self, id: str, names: Sequence[str]) -> Call[list[str]]:
        """Find the queues among *names* that have a job of this id. Reads the newest 1,000 dead
        letters, or 1 MiB."""
        job_id(id)
        for name in names:
            self._ops_factory.whole(name)  # refused before anything is sent

        def build() -> Call[list[str]]:
            found: list[str] = []
            for start in range(0, len(names), OPS_PER_TRIP):
                some = names[start : start + OPS_PER_TRIP]
                parts = yield from self._ops_factory.levelled(some)
                places = {name: asked(parts[name], id) for name in some}
                states = iter(
                    (
                        yield from send_all(
                            [view_ops.find(ops, its) for name in some for ops, its in places[name]]
                        )
                    )
                )
                found += (
                    name
                    for name in some
                    if [None for _ in places[name] if next(states) is not None]
                )
            return found

        return (yield from self.kept(("find", id, *names), build))


def _children(steps: Sequence[Step]) -> list[Place]:
    return [(step.queue, step.child) for step in steps if step.queue and step.child]


def _kind(kind: str | None, ended: Sequence[JobState[Any]]) -> KindView:
    runs = _p50_and_p95(map(duration_of, ended))
    waits = _p50_and_p95(map(wait_of, ended))
    return KindView(kind, len(ended), sum(one.state == "dead" for one in ended), runs, waits)


def _p50_and_p95(some: Iterable[float | None]) -> tuple[float, float] | None:
    known = sorted(one for one in some if one is not None)
    at = [min(len(known) - 1, int(len(known) * part)) for part in (0.5, 0.95)]
    return (known[at[0]], known[at[1]]) if known else None
