"""Leasing without a worker. The lease loop of a plain queue also reclaims and promotes."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from attrs import define, field

from headrace._core.effects import Block, Call, NoteDead, Now, Sleep, Undo, Undoable, send, settle
from headrace._core.queue.calls import each
from headrace._core.queue.schedules import run_due_schedules
from headrace._core.verdicts import undecoded
from headrace._model.checks import FOREVER_S
from headrace._model.codec import BytesCodec
from headrace._model.job import Claim
from headrace._protocol.jobs import Jobs
from headrace._protocol.limits import (
    BYTES_PER_SCRIPT,
    CLAIMS_PER_SCRIPT,
    LEASED_PER_SCRIPT,
    RECORD_S,
    REWRITES_PER_SCRIPT,
)
from headrace._protocol.op import Op, chunks
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Grant
from headrace.errors import ReplyError

# seconds before a due time that the client waits itself: blocked reads may end this late
CLIENT_WAIT_S = 0.1


def new_name() -> str:
    return f"queue-{secrets.token_hex(8)}"


def granted(grant: Grant | None) -> list[Claim]:
    return [] if grant is None else [*grant.claims, *(claim for claim, _ in grant.undecodable)]


def untaken(ops: Ops, grant: Grant | None) -> Op[list[bool]] | None:
    """Return the operation that releases granted jobs that were not taken. It is `None` if there
    are none."""
    claims = granted(grant)
    return ops.release(claims) if claims else None


@define
class Taken:
    claims: list[Claim] = field(factory=list[Claim])
    whole: Undoable | None = None

    def all(self) -> list[Claim]:
        last = granted(None if self.whole is None else self.whole.answer)
        return list({claim.entry: claim for claim in [*self.claims, *last]}.values())


@define
class DirectLeaser:
    """Leases from a plain queue without a worker, under its own name. It also reclaims, promotes
    and serves schedules.
    """

    ops: Ops
    name: str
    tidy_at: float = float("-inf")  # when to reclaim and promote again
    soon: bool = False  # that is within a second
    tick_at: float | None = None  # when a schedule is due
    fair: bool = False  # the queue has terms
    registered: bool = False  # a lease was asked for, which registers it
    longest: float = 0.0  # seconds for which it counted as alive, at most
    unanswered: list[tuple[float, Undoable]] = field(factory=list[tuple[float, Undoable]])
    raw: Jobs = field(init=False)  # decodes without the codec

    def __attrs_post_init__(self) -> None:
        self.raw = Jobs(self.ops.keys.queue, BytesCodec())

    def ttl(self, duration: float | None) -> float:
        """Return the seconds for which it counts as alive. This is the duration of its leases, as
        it has no heartbeat.
        """
        seconds = min(max(self.ops.settings.lease, duration or 0.0) + 10.0, FOREVER_S)
        self.longest = max(self.longest, seconds)
        return seconds

    def leasers(self) -> list[DirectLeaser]:
        return [self]

    def lease(
        self, limit: int, block: float | None, duration: float | None, at_most_once: bool
    ) -> Call[list[Claim]]:
        """Lease up to *limit* jobs. Wait up to *block* seconds for the first, or for ever if it is
        `None`.

        A call that is interrupted, or fails at a later chunk, keeps no job. Its jobs go back to the
        front, untouched.
        """
        taken = Taken()
        try:
            if self.unanswered:
                yield from self.forgo()
            return (yield from self._lease(limit, block, duration, at_most_once, taken))
        except GeneratorExit:
            raise
        except BaseException:
            ops = self.release(taken.all())
            if ops:
                yield Undo(ops)
            raise

    def _lease(
        self,
        limit: int,
        block: float | None,
        duration: float | None,
        at_most_once: bool,
        taken: Taken,
    ) -> Call[list[Claim]]:
        start = yield from Now()
        self.registered = True
        claims = taken.claims
        woken = False
        refused = 0
        while True:
            asked = now = yield from Now()
            yield from self._tidy(now)
            want = min(
                limit - len(claims),
                CLAIMS_PER_SCRIPT if self.ops.settings.priorities == 1 else LEASED_PER_SCRIPT,
            )
            op = self.ops.lease(
                self.name,
                want,
                duration=duration,
                ttl=self.ttl(duration),
                woken=woken,
                fair=self.fair,
            )
            taken.whole = Undoable(op, self.give_back)
            grant = yield from self._granted(taken.whole, asked)
            if grant is None:
                refused = yield from self.start_anew(claims, refused + 1)
                continue
            refused = 0
            yield from self.note(grant)
            if grant.elsewhere:
                yield from self.prepare()
                continue
            claims += grant.claims
            if grant.died or grant.undecodable:
                yield from self.quarantine(grant)
            got = len(grant.claims) + len(grant.undecodable)
            if len(claims) >= limit or (claims and got < want and not grant.more):
                if at_most_once:  # completed before the caller sees them, when all are leased
                    claims[:] = yield from self.completed(claims)
                if claims:
                    return claims
            if got or grant.more:
                continue  # more jobs may be available than one script hands out, or passes
            now = yield from Now()
            left = 1.0 if block is None else start + block - now
            if left <= 0:
                return claims
            pause = min(left, 1.0)
            # From the sending of the call: the next call takes as long to arrive.
            dues = [] if grant.next_due is None else [asked + grant.next_due - now]
            dues += [] if self.tick_at is None else [self.tick_at - now]
            dues += [self.tidy_at - now] if self.soon else []
            due = min(dues, default=pause)
            if due < pause and due <= CLIENT_WAIT_S:
                yield Sleep(max(due, 0.001))
                continue
            yield Block(
                self.ops.wait(due - CLIENT_WAIT_S if due < pause else pause, paused=grant.paused)
            )
            woken = True

    def _tidy(self, now: float) -> Call[None]:
        if self.tidy_at <= now:
            self.tidy_at = now + 1.0
            swept = yield from send(self.ops.reclaim(self.name, 10.0))
            self.soon = swept.again is not None
            self.tidy_at = now + (1.0 if swept.again is None else swept.again)
            self.tick_at = None if swept.next_tick is None else now + swept.next_tick
        if self.tick_at is not None and self.tick_at <= now:
            yield from self.run_due_schedules()
        yield from self.prepare()

    # hooks that `FairLeaser` overrides: here is nothing to do

    def prepare(self) -> Call[None]:
        yield from ()

    def renamed(self) -> None:
        """Take the steps of a subclass after a new name. This class has none."""

    def note(self, grant: Grant) -> Call[None]:  # noqa: ARG002 - nothing here
        yield from ()

    def _granted(self, whole: Undoable, now: float) -> Call[Grant | None]:
        try:
            return (yield from whole)
        except Exception as error:
            if getattr(error, "outcome", "") == "unknown":  # it may have happened, or may yet
                self.unanswered.append((now, whole))
            raise

    def completed(self, claims: Sequence[Claim]) -> Call[list[Claim]]:
        won = yield from each(partial(self.ops.complete, fenced=True), claims)
        return [claim for claim, ours in zip(claims, won, strict=True) if ours]

    def forgo(self) -> Call[None]:
        """Repeat the calls that were not answered, and give the jobs that they leased back to the
        front, untouched."""
        while True:
            try:
                since, whole = late = self.unanswered.pop()
            except IndexError:
                return
            if (yield from Now()) - since > RECORD_S / 2:
                continue  # the call may run again: its jobs then come back when their leases end
            try:
                grant = yield from whole
                for op in [] if grant is None else self.release(Taken(whole=whole).all()):
                    yield from send(op)
            except BaseException:
                self.unanswered.append(late)
                raise
            if grant is not None and grant.died:
                yield NoteDead([(self.ops.keys.queue, died) for died in grant.died])

    def start_anew(self, claims: list[Claim], times: int) -> Call[int]:
        """Take another name, as this one was declared dead.

        The *claims* of this call are lost, or go back to the front. Raises `ReplyError` the third
        time in a row.
        """
        if times == 3:
            raise ReplyError(
                "lease: the server rejected three new registrations of this client as dead"
            )
        for op in self.release(claims):
            yield from send(op)
        claims.clear()
        self.name = new_name()
        self.renamed()
        return times

    def run_due_schedules(self) -> Call[None]:
        plan = yield from run_due_schedules(self.ops)
        self.tick_at = None if plan.wait is None else (yield from Now()) + plan.wait

    def give_back(self, reply: Any) -> Op[list[bool]] | None:
        return untaken(self.ops, self.raw.grant(reply, self.name, None))

    def release(self, claims: Sequence[Claim]) -> list[Op[list[bool]]]:
        some = chunks(claims, lambda claim: claim.size, CLAIMS_PER_SCRIPT, BYTES_PER_SCRIPT)
        return [self.ops.release(chunk) for chunk in some]

    def leaving(self) -> list[Op[Any]]:
        if not self.registered:
            return []
        self.registered = False
        return [self.ops.leave(self.name, idle=True)]

    def quarantine(self, grant: Grant) -> Call[None]:
        """Move jobs that do not decode to the dead letters, with their bytes, so that none of them
        stops the queue. Delay jobs that may decode later. Report all of these jobs, and the jobs
        without attempts left.
        """
        if grant.died:
            yield NoteDead([(self.ops.keys.queue, died) for died in grant.died])
        each = [undecoded(claim, reason) for claim, reason in grant.undecodable]
        for some in chunks(each, lambda one: one.claim.size, REWRITES_PER_SCRIPT, BYTES_PER_SCRIPT):
            later = [
                (one.claim, one.delay, one.spend, one.reason) for one in some if one.kind == "retry"
            ]
            dead = [(one.claim, one.reason) for one in some if one.kind == "dead"]
            if later:
                yield from send(self.ops.retry(later))
            if dead:
                yield from settle(self.ops.dead_letter(dead))
