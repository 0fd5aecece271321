"""Operations that read a queue, and change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve, frozen

from headrace._model import checks
from headrace._model.state import Counts, JobState, WorkerState
from headrace._protocol import replies
from headrace._protocol.keys import wire_id
from headrace._protocol.limits import JOBS_PER_SCRIPT, LISTED_PER_SCRIPT
from headrace._protocol.op import Arg, Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Page, text


@frozen
class About:
    now: float  # seconds of the server's clock
    paused: bool
    levels: int
    declaration: int
    declared: dict[str, str]


@frozen
class Holding:
    worker: str
    count: int
    until: float | None  # seconds; `None`: unknown


def about(ops: Ops) -> Op[About]:
    return ops.op("about", [], _about)


def _about(reply: Any) -> About:
    now, paused, levels, declaration, *words = reply
    said = list(map(text, words))
    return About(
        now / 1000,
        paused == 1,
        levels + 1,
        declaration,
        dict(zip(said[::2], said[1::2], strict=False)),
    )


@frozen
class Signs:
    """Signs of trouble of a queue. `letters` is the number of dead letters of late, and `more`
    tells whether there are more. No worker had a handler for the kind of `unhandled` of them. A
    rate limit holds back `held` jobs. No live worker has a handler for the `kinds` of the next
    jobs.
    """

    letters: int = 0
    unhandled: int = 0
    more: bool = False
    held: int = 0
    buckets: tuple[int, ...] = ()
    """The ms until the buckets of the queue's rate limits are full. They are 0 for limits by a
    header."""
    kinds: tuple[str, ...] = ()


def signs(ops: Ops, seconds: int, limit: int) -> Op[Signs]:
    """Read the signs of trouble, with at most *limit* dead letters of the last *seconds*."""

    def decode(reply: Any) -> Signs:
        letters, unhandled, more, held, buckets, *kinds = reply
        return Signs(letters, unhandled, more == 1, held, tuple(buckets), tuple(map(text, kinds)))

    return ops.op("signs", [seconds, limit], decode)


def lease_of(ops: Ops, entry: str) -> Op[Holding | None]:
    def decode(reply: Any) -> Holding | None:
        if not reply:
            return None
        return Holding(text(reply[0]), reply[1], reply[2] / 1000 if reply[2] else None)

    return ops.op("lease_of", [entry], decode)


def counts(ops: Ops) -> Op[Counts]:
    return ops.op("counts", [], replies.counts)


def levels(ops: Ops) -> Op[int]:
    return ops.op("levels", [], lambda reply: int(reply) + 1)


def measure(ops: Ops) -> Op[tuple[Counts, float, float]]:
    """Count the jobs in each state, and return the age in seconds of the oldest job that may be
    next, and the longest wait for a signal.
    """
    return ops.op("measure", [], replies.measured)


def look(ops: Ops) -> Op[tuple[About, tuple[Counts, float, float]]]:
    """Read the answers of `about` and `measure` in one script. If the queue has more levels than
    these operations know, it is to be measured again.
    """
    return ops.op("measure", [], lambda reply: (_about(reply[-1]), replies.measured(reply)))


def listing(
    ops: Ops,
    state: str,
    cursor: str,
    limit: int = LISTED_PER_SCRIPT,
    *,
    newest: bool = False,
    wanted: Sequence[Arg] = (),
) -> Op[Page]:
    """List a page of the jobs in *state*, which is waiting, running, delayed, blocked, dead or
    ended. With *newest*, dead and ended jobs come newest first. *wanted* is a value, of which the
    waiting jobs are listed.
    """
    limit = checks.count("limit", limit, most=JOBS_PER_SCRIPT)
    return ops.op("list", [state, cursor, limit, int(newest), *wanted], ops.decoder.page)


def find(ops: Ops, name: str) -> Op[JobState[Any] | None]:
    """Find one job. It searches only the newest 1,000 dead letters, or 1 MiB of them."""
    jobs = ops.decoder
    return ops.op("find", [wire_id(name), ""], lambda reply: jobs.found(reply)[0])


def seek(ops: Ops, name: str, cursor: str) -> Op[tuple[JobState[Any] | None, str]]:
    """Find one job, and search the dead letters from *cursor* on. The answer has the cursor to
    continue from."""
    return ops.op("find", [wire_id(name), cursor], ops.decoder.found)


def position(
    ops: Ops, name: str, limit: int = JOBS_PER_SCRIPT, cursor: str = ""
) -> Op[tuple[int, str]]:
    """Count the jobs in front of a waiting job, and return the cursor to continue from. The count
    is -1 if the job does not wait.
    """
    return ops.op("position", [wire_id(name), limit, cursor], replies.moved)


def workers(ops: Ops) -> Op[list[WorkerState]]:
    return ops.op("workers", [], lambda reply: replies.workers(reply, ops.keys.queue))


def known_kinds(ops: Ops) -> Op[frozenset[str]]:
    """Ask for the kinds of jobs that live workers have handlers for. The answer is '' if a worker
    takes all kinds."""
    return ops.op("workers", [], replies.known_kinds)


def seek_delivery(
    ops: Ops, name: str, cursor: str
) -> Op[tuple[JobState[Any] | None, int, float, str]]:
    """Like `seek`, with the token of the job's delivery and the server's time in the middle."""
    jobs = ops.decoder

    def decode(reply: Any) -> tuple[JobState[Any] | None, int, float, str]:
        row = reply[1]
        state, more = jobs.found(reply)
        token = (
            jobs.job(row[0], row[1], row[3], row[4])[1] if row and text(row[2]) == "leased" else 0
        )
        return state, token, reply[0] / 1000, more

    return ops.op("find", [wire_id(name), cursor], decode)


def weighed(
    ops: Ops, state: str, cursor: str, limit: int, *, newest: bool = False
) -> Op[tuple[list[JobState[Any]], str, float, int]]:
    """Like `listing`. The answer has jobs, the cursor to continue from, the server's seconds, and
    the page's bytes."""
    jobs = ops.decoder

    def decode(reply: Any) -> tuple[list[JobState[Any]], str, float, int]:
        more, now, rows = reply
        size = sum(len(part) for row in rows for part in row[1])
        return [jobs.state(row, now) for row in rows], text(more), now / 1000, size

    op: Op[Any] = listing(ops, state, cursor, limit, newest=newest)
    return evolve(op, decode=decode)
