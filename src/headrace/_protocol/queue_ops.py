"""Every operation of one queue, as an `Op`. Pure: no client, no clock.

Arguments are validated here, so that a bad one is refused before anything is sent.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, TypeVar, cast

from attrs import frozen

from headrace import _replies as replies
from headrace import _settings as checked
from headrace._codec import BytesCodec, Codec
from headrace._job import (
    PRIORITY,
    Claim,
    Counts,
    Entered,
    Grant,
    JobState,
    NewJob,
    Page,
    Receipt,
    Reclaimed,
    Repairs,
    Schedule,
    Ticking,
    Turn,
    WorkerState,
)
from headrace._keys import BELL, GROUP, Keys, job_id, worker_name
from headrace._op import Arg, Op, script
from headrace._schedule import LIMIT, Timing, decide, missed_policy
from headrace._settings import PRIORITIES, Context, QueueSettings, millis
from headrace.errors import CodecError, ConfigurationError, said

T = TypeVar("T")
BATCH = 1000  # jobs in one script: it stays under about 5 ms, and under Lua's limit on unpack
SIZE = 1 << 20  # bytes in one script
Item = tuple[str, str, list[str | bytes]]  # id, delay, fields
Delay = float | timedelta | datetime | None

_KEYS = {
    "enqueue": "jobs wake ids delayed bodies stats events",
    "lease": "jobs wake ids workers registered leases released delayed bodies dead stats limited rates events flows",
    "complete": "jobs ids leases released stats events flows",
    "renew": "jobs leases workers",
    "release": "jobs wake leases released stats events",
    "retry": "jobs wake ids leases released delayed bodies dead stats events flows",
    "dead_letter": "jobs ids leases released dead stats events flows",
    "beat": "workers registered",
    "reclaim": "jobs wake ids workers registered leases released delayed bodies ticks stats limited events",
    "leave": "jobs wake workers registered leases released stats events",
    "cancel": "jobs ids leases released delayed bodies blocked stats control events flows",
    "cancel_payload": "jobs ids leases released delayed bodies stats control events flows",
    "purge": "jobs ids leases released delayed bodies stats limited events flows",
    "purge_dead": "dead stats events",
    "delete": "jobs wake ids leases released delayed bodies blocked schedules ticks dead stats limited rates"
    " control events flows",
    "redrive": "jobs wake ids released dead stats events flows",
    "counts": "jobs delayed blocked dead stats",
    "levels": "stats",
    "measure": "jobs delayed blocked dead stats",
    "list": "jobs released delayed bodies dead limited stats",
    "find": "jobs ids released delayed bodies blocked dead limited stats",
    "position": "jobs ids stats",
    "workers": "jobs workers registered",
    "listen": "stats",
    "reschedule": "jobs wake ids released delayed bodies stats events",
    "schedule": "wake schedules ticks",
    "unschedule": "schedules ticks",
    "schedules": "schedules ticks",
    "tick": "jobs wake ids schedules ticks stats events",
    "pause": "wake stats",
    "paused": "stats",
    "expire": "jobs wake ids leases stats control events",
    "fail_worker": "jobs wake workers registered leases stats control events",
    "register": "workers registered",
    "move": "jobs ids released delayed bodies stats events",
    "repair": "jobs wake ids workers registered leases released delayed bodies blocked dead stats flows",
    "flow_start": "index",
    "flow_advance": "index",
    "flow_events": "flows",
    "flow_find": "index",
}
_FOLLOW = "jobs wake ids delayed bodies stats events"  # what a follow-up needs of its queue


@frozen
class Ops:
    """Builds the operations of one queue. `worker` is who leases and settles."""

    keys: Keys
    settings: QueueSettings = QueueSettings()
    codec: Codec = BytesCodec()
    namespace: str = "headrace"

    def _op(
        self,
        name: str,
        args: Sequence[Arg],
        decode: Callable[[Any], T],
        extra: Sequence[str] = (),
        items: Sequence[Any] = (),
        join: Callable[[Sequence[Any]], Op[Any]] | None = None,
    ) -> Op[T]:
        source = script(name)
        keys = [self.keys.part(part) for part in _KEYS[name].split()]
        lane = self.keys.lane("") if source.recorded else ""
        levels = self.keys.levels(self.settings.priorities) if source.levelled else ()
        return Op(name, source, [*keys, *extra, *levels], args, decode, lane, items, join)

    @property
    def _jobs(self) -> replies.Jobs:
        return replies.Jobs(self.keys.queue, self.codec)

    # -- producing ---------------------------------------------------------------------------------

    def item(self, job: Any, context: Context | None = None) -> bytes | Item:
        """A payload or `NewJob`, checked: the encoded payload, if there is nothing else to it."""
        if not isinstance(job, NewJob):
            data = self.codec.encode(job)
            return data if context is None else ("", "", ["data", data, *context()])
        if job.queue is not None and job.queue != self.keys.queue:
            raise ValueError(f"queue {job.queue!r} of a NewJob: only follow-ups (then=) may go to another queue")
        name, delay, fields = self._item(job)
        if context is not None:
            fields += checked.joined(job.headers, context)
        return (name, delay, fields) if name or len(fields) > 2 else cast(bytes, fields[1])

    def _item(self, job: NewJob, priorities: int | None = None) -> Item:
        delay = checked.delay(job.delay)
        headers = self._headers(job, priorities)
        name = job_id(job.id) if job.id is not None else secrets.token_hex(12) if delay else ""
        fields: list[str | bytes] = ["data", self.codec.encode(job.payload)]
        if name:
            fields += ("id", name)
        return name, delay, [*fields, *headers]

    def _headers(self, job: NewJob, priorities: int | None = None) -> list[str]:
        """Its headers, and its level; those of another job may be handed on, that one's level is not."""
        level = checked.level(job.priority, priorities or self.settings.priorities)
        flat = checked.headers(job.headers)
        if PRIORITY in flat[::2]:
            at = 2 * flat[::2].index(PRIORITY)
            del flat[at : at + 2]
        return [*flat, PRIORITY, str(level)] if level else flat

    def enqueue(self, items: Sequence[bytes | Item]) -> Op[list[Receipt]]:
        """Add what `item` made, at most `BATCH`."""
        if tuple not in set(map(type, items)):
            plain = cast("Sequence[bytes]", items)
            return self._op("enqueue", ["plain", *plain], replies.plain_receipts, (), items, self.enqueue)
        args: list[Arg] = ["full"]
        for item in items:
            name, delay, fields = item if isinstance(item, tuple) else ("", "", ["data", item])
            args += (name, delay, len(fields), *fields)
        return self._op("enqueue", args, replies.receipts, (), items, self.enqueue)

    def batches(self, jobs: Iterable[Any], context: Context | None = None) -> Iterable[Op[list[Receipt]]]:
        """*jobs* as operations of at most `BATCH` jobs and about `SIZE` bytes; all are checked first."""
        if isinstance(jobs, (str, bytes, bytearray, memoryview, NewJob)) or not isinstance(jobs, Iterable):
            raise TypeError(f"jobs must be an iterable of payloads or NewJob objects, not {type(jobs).__name__}")
        encode, plain = self.codec.encode, bytes if context is None else None
        items: list[bytes | Item] = [encode(job) if type(job) is plain else self.item(job, context) for job in jobs]
        start = 0
        while start < len(items):
            some = items[start : start + BATCH]
            sizes = [sum(map(len, i[2])) if isinstance(i, tuple) else len(i) for i in some]
            fit = max(1, bisect_right(list(accumulate(sizes)), SIZE))
            yield self.enqueue(some[:fit])
            start += fit

    # -- leasing -----------------------------------------------------------------------------------

    def lease(
        self,
        worker: str,
        limit: int,
        *,
        duration: float | None = None,
        ttl: float = 0.0,
        woken: bool = False,
        kind: type[Claim] = Claim,
        heir_of: str = "",
    ) -> Op[Grant | None]:
        """Hand out up to *limit* jobs, at most `BATCH`, as claims of *kind*; those of *heir_of* before all others.

        `None`: *worker* was declared dead.
        """
        s = self.settings
        args: list[Arg] = [
            worker,
            min(limit, BATCH),
            "" if duration is None else millis(duration),
            millis(s.lease),
            millis(ttl),
            s.max_attempts or 0,
            s.dead_limit,
            int(woken),
            heir_of,
        ]
        for rate in s.rates:
            args += (rate.key or "", f"{rate.step:.6f}", rate.tokens)
        jobs = self._jobs
        return self._op("lease", args, lambda reply: jobs.grant(reply, worker, duration, kind))

    def wait(self, block: float, *, paused: bool = False) -> tuple[Arg, ...]:
        """The one command that is no script: block until there may be something to lease.

        What it delivers goes to a reserved consumer, from which the next `lease` of anybody takes it: so
        a reply that is lost, or a read that is cancelled, loses nothing. While the queue is *paused* nothing may be
        delivered at all, and everybody is to hear when that is over.
        """
        stream, wake = self.keys.part("jobs"), self.keys.part("wake")
        milliseconds = max(1, millis(block))  # 0 would be for ever
        if paused:
            return ("XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", wake, "$")
        return (
            "XREADGROUP", "GROUP", GROUP, BELL, "COUNT", 1, "BLOCK", milliseconds, "STREAMS", stream, wake, ">", ">",
        )  # fmt: skip

    # -- settling ----------------------------------------------------------------------------------

    def complete(
        self,
        claims: Sequence[Claim],
        *,
        fenced: bool | None = None,
        results: Mapping[str, bytes] | None = None,
        then: Sequence[NewJob] = (),
    ) -> Op[list[bool]]:
        """Remove *claims*' jobs for good. *results* by entry; *then* follows the only claim."""
        if isinstance(then, NewJob) or not isinstance(then, Sequence):
            raise TypeError(f"then must be a list of NewJob objects, not {type(then).__name__}")
        if fenced is not None and not isinstance(fenced, bool):
            raise TypeError(f"fenced must be a bool or None, not {type(fenced).__name__}")
        fence = self.settings.fenced if fenced is None else fenced
        with_ids = any(c.job.id != c.entry for c in claims)
        results = results or {}
        args: list[Arg] = [
            claims[0].worker if fence else "",
            len(claims),
            int(with_ids),
            len(results),
            len(then),
        ]
        args += [c.entry for c in claims]
        if fence:
            args += [c.count for c in claims]
        if with_ids:
            args += ["" if c.job.id == c.entry else c.job.id for c in claims]
        extra: list[str] = []
        for number, claim in enumerate(claims, 1) if results else ():
            if claim.entry in results:
                args += (number, millis(self.settings.result_ttl), results[claim.entry])
                extra.append(self.keys.result(claim.job.id))
        for job in then:
            keys, name, delay, fields = self.follow(job)
            args += (1, name, delay, job.priority, len(fields), *fields)
            extra += [keys.part(part) for part in _FOLLOW.split()]
            extra.append([keys.part("jobs"), *keys.levels(PRIORITIES)][job.priority])
        alike = not (fence or results or then)
        return self._op("complete", args, replies.bools, extra, claims, self._complete_all if alike else None)

    def _complete_all(self, claims: Sequence[Claim]) -> Op[list[bool]]:
        return self.complete(claims, fenced=False)

    def follow(self, job: NewJob) -> tuple[Keys, str, str, list[str | bytes]]:
        """A follow-up, checked: it must stay in this queue's group, one hash slot."""
        if not isinstance(job, NewJob):
            raise TypeError(f"then must hold NewJob objects, not {type(job).__name__}")
        keys = self.keys if job.queue is None else self._near("then: queue", job.queue)
        return keys, *self._item(job, None if keys == self.keys else PRIORITIES)

    def _near(self, what: str, queue: str) -> Keys:
        """The keys of another queue that one script can reach."""
        keys = Keys.of(queue, self.namespace)
        if keys.group != self.keys.group:
            raise ConfigurationError(
                f"{what} {queue!r} is of group {keys.group!r}, this one of {self.keys.group!r}; "
                "one script reaches one group only: name both queues '<group>/<part>', or enqueue it yourself"
            )
        return keys

    def result_bytes(self, result: Any) -> bytes:
        """A result as bytes, by the codec. `TypeError` or `CodecError` if it can't be."""
        try:
            return self.codec.encode(result)
        except (TypeError, CodecError) as error:
            raise type(error)(f"result: {error}") from error

    def renew(self, claims: Sequence[Claim], *, duration: float | None = None, ttl: float = 0.0) -> Op[list[bool]]:
        """Make leases of one worker last again."""
        args: list[Arg] = [
            claims[0].worker,
            "" if duration is None else millis(duration),
            millis(ttl),
        ]
        for claim in claims:
            args += (claim.entry, claim.count)
        return self._op("renew", args, replies.bools)

    def release(self, claims: Sequence[Claim]) -> Op[list[bool]]:
        """Give jobs of one worker back to the front."""
        args: list[Arg] = [claims[0].worker]
        for claim in claims:
            args += (claim.entry, claim.count)
        return self._op("release", args, replies.bools)

    def retry(
        self, items: Sequence[tuple[Claim, Delay, int, str]], *, max_attempts: int | None = None
    ) -> Op[list[bool]]:
        """Jobs of one worker go round again: (claim, delay, attempts spent: 1, 0, or -1 to give all back; reason)."""
        limit = max_attempts if max_attempts is not None else self.settings.max_attempts
        args: list[Arg] = [items[0][0].worker, limit or 0, self.settings.dead_limit]
        for claim, delay, spend, reason in items:
            traced = getattr(claim, "trace", None)
            args += (claim.entry, claim.count, checked.delay(delay))
            args += (int(spend) if traced is None else f"{int(spend)} {traced}", checked.reason(reason))
        return self._op("retry", args, replies.bools)

    def dead_letter(self, items: Sequence[tuple[Claim, str]]) -> Op[list[bool]]:
        """Jobs of one worker will never work: (claim, reason) each."""
        args: list[Arg] = [items[0][0].worker, self.settings.dead_limit]
        for claim, reason in items:
            args += (claim.entry, claim.count, checked.reason(reason))
        return self._op("dead_letter", args, replies.bools)

    # -- a worker's life -----------------------------------------------------------------------------

    def beat(self, worker: str, timeout: float, *, register: bool = False) -> Op[bool]:
        """Say that *worker* lives; `False`: it was declared dead."""
        args: list[Arg] = [worker, millis(timeout), millis(self.settings.lease), int(register)]
        return self._op("beat", args, bool)

    def register(self, worker: str, name: str, timeout: float, seen: str = "", *, decide: bool = False) -> Op[Entered]:
        """Let *worker* in under *name*; *seen* is who may live under it, and has had its time when we *decide*."""
        args: list[Arg] = [worker, name, millis(timeout), millis(self.settings.lease), seen, int(decide)]
        return self._op("register", args, replies.entered)

    def reclaim(self, worker: str, timeout: float, cursor: str = "-") -> Op[Reclaimed]:
        """Put dead workers' jobs and expired leases to the front; promote what is due. 500 at a time."""
        s = self.settings
        args: list[Arg] = [worker, millis(timeout), millis(s.lease), cursor, 500, millis(s.ageing or 0)]
        return self._op("reclaim", args, replies.reclaimed)

    def leave(self, worker: str) -> Op[tuple[int, str]]:
        """Release what *worker* holds and forget it. A second answer of '1' wants another call."""
        return self._op("leave", [worker, 500], replies.moved)

    # -- the whole queue -----------------------------------------------------------------------------

    def cancel(self, name: str) -> Op[bool]:
        """Remove one job by id."""
        return self._op("cancel", [job_id(name)], bool)

    def cancel_payload(self, payload: bytes, place: str, cursor: str) -> Op[tuple[int, str, str]]:
        """Remove the jobs of one payload from one page."""
        return self._op("cancel_payload", [payload, place, cursor, 500], replies.place)

    def purge(self) -> Op[int]:
        """Remove a page of what waits."""
        return self._op("purge", [500], int)

    def purge_dead(self, cursor: str, wanted: Sequence[str]) -> Op[tuple[int, str]]:
        """Remove a page of dead letters."""
        return self._op("purge_dead", [cursor, 500, *map(job_id, wanted)], replies.moved)

    def delete(self) -> Op[int]:
        """Remove everything."""
        return self._op("delete", [], int)

    def redrive(self, cursor: str, wanted: Sequence[str]) -> Op[tuple[int, str]]:
        """Send a page of dead letters back."""
        return self._op("redrive", [cursor, 500, *map(job_id, wanted)], replies.moved)

    def pause(self, pause: bool) -> Op[bool]:
        """Hand out nothing more, or again; whether that changed something."""
        return self._op("pause", [int(pause)], bool)

    def paused(self) -> Op[bool]:
        """Whether nothing is handed out."""
        return self._op("paused", [], bool)

    def expire(self, cursor: str, wanted: Sequence[str]) -> Op[tuple[int, str]]:
        """End a page of leases, or those of *wanted*."""
        return self._op("expire", [cursor, 500, *wanted], replies.moved)

    def fail_worker(self, name: str) -> Op[tuple[int, str]]:
        """Declare a worker dead. A second answer of '1' wants another call."""
        return self._op("fail_worker", [worker_name(name), 500], replies.moved)

    def move(self, to: str, cursor: str, wanted: Sequence[str]) -> Op[tuple[int, str]]:
        """Move a page of what waits to another queue, or *wanted*."""
        target = self._near("to", to)
        if target == self.keys:
            raise ConfigurationError(f"to={to!r} is this queue itself")
        keys = [target.part(part) for part in ("wake", *_KEYS["move"].split())]
        levels = [level for keys in (self.keys, target) for level in keys.levels(self.settings.priorities)]
        return self._op("move", [cursor, 200, *wanted], replies.moved, [*keys, *levels])

    def counts(self) -> Op[Counts]:
        """All counts at one instant."""
        return self._op("counts", [], replies.counts)

    def levels(self) -> Op[int]:
        """How many priority levels the queue is known to have, the first included."""
        return self._op("levels", [], lambda reply: int(reply) + 1)

    def measure(self) -> Op[tuple[Counts, float]]:
        """All counts, and for how many seconds the oldest of the jobs that are next has been in the queue."""
        return self._op("measure", [], replies.measured)

    def listing(self, state: str, cursor: str, limit: int = 200) -> Op[Page]:
        """A page of the jobs in *state*: waiting, running, delayed or dead."""
        return self._op("list", [state, cursor, limit], self._jobs.page)

    def find(self, name: str) -> Op[JobState | None]:
        """Where one job is."""
        return self._op("find", [job_id(name)], self._jobs.found)

    def position(self, name: str) -> Op[int | None]:
        """How many jobs are in front of one that waits."""
        return self._op("position", [job_id(name), BATCH], lambda reply: None if reply < 0 else int(reply))

    def workers(self) -> Op[list[WorkerState]]:
        """Who is registered."""
        return self._op("workers", [], lambda reply: replies.workers(reply, self.keys.queue))

    def repair(self, place: str = "jobs", cursor: str = "-") -> Op[tuple[Repairs, str, str]]:
        """Mend a page of what foreign commands broke."""
        return self._op("repair", [place, cursor, 500, millis(self.settings.lease)], replies.repairs)

    def result(self, name: str) -> Op[bytes | None]:
        """What a completion kept."""
        return Op(
            "result", script("result"), [self.keys.result(job_id(name))], [], lambda reply: replies.kept(reply)[0]
        )

    def results(self, names: Sequence[str]) -> Op[list[bytes | None]]:
        """What the completions of so many jobs kept, at most 500."""
        keys = [self.keys.result(job_id(name)) for name in names]
        return Op("result", script("result"), keys, [], replies.kept, "", names, self.results)

    def listen(self) -> Op[bool]:
        """Say that somebody listens to events."""
        return self._op("listen", [], bool)

    def reschedule(self, name: str, delay: Delay) -> Op[bool]:
        """Another delay for a delayed job."""
        return self._op("reschedule", [job_id(name), checked.delay(delay)], bool)

    # -- what recurs ---------------------------------------------------------------------------------

    def schedule(self, name: str, timing: Timing, missed: str, job: NewJob) -> Callable[[int], Op[int]]:
        """Make a job recur: given the server's now in ms, the operation; it answers -1 when there are too many."""
        if len(job_id(name).encode()) > 400:
            raise ValueError("name: use at most 400 bytes of UTF-8: the ids of its jobs begin with it")
        fields: list[Arg] = ["data", self.codec.encode(job.payload), *self._headers(job)]
        head: list[Arg] = [job_id(name), str(timing), missed_policy(missed)]

        def at(now: int) -> Op[int]:
            return self._op("schedule", [*head, timing.after(now, now), LIMIT, *fields], int)

        return at

    def unschedule(self, name: str) -> Op[bool]:
        """End a schedule."""
        return self._op("unschedule", [job_id(name)], bool)

    def schedules(self) -> Op[list[Schedule]]:
        """All that recurs."""
        return self._op("schedules", ["all"], replies.schedules)

    def ticking(self, which: str = "due") -> Op[Ticking]:
        """The schedules with a tick that is due; with 'none', what time it is."""
        return self._op("schedules", [which], replies.ticking)

    def turn(self, ticking: Ticking) -> Turn:
        """What to do about the ticks that are due."""
        ops: list[Op[bool]] = []
        waits = [] if ticking.next is None else [ticking.next]
        wrong: list[str] = []
        for name, due, stored, missed in ticking.rows:
            try:
                timing = Timing.parse(stored)
                ticks, following = decide(timing, missed, due, ticking.now)
            except Exception as error:  # a library or a time zone that this machine lacks, or somebody else's data
                wrong.append(f"schedule {name!r} of queue {self.keys.queue!r}: {said(error)}")
                continue
            waits.append((following - ticking.now) / 1000)
            ops.append(self._op("tick", [name, stored, due, following, *ticks], bool))
        return Turn(ops, min(waits, default=None), wrong)
