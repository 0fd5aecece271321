"""The operations of runs. They record steps, suspend and wake a run, and read its records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from attrs import evolve, frozen

from headrace._model.checks import LEVELS_AT_MOST, Context, term, trace_headers
from headrace._model.job import PARENT, Claim, NewJob, on_wire
from headrace._model.state import JobState
from headrace._model.steps import Record
from headrace._protocol.features.runs.records import Records, records
from headrace._protocol.keys import Keys, wire_id
from headrace._protocol.limits import JOBS_PER_SCRIPT
from headrace._protocol.op import Arg, Op
from headrace._protocol.queue_ops import FOLLOWED, Ops
from headrace._protocol.replies import raw, text

MODES = ("undoing", "dying")  # kinds of the record without a name
LOST, RECORDS_SPENT, BYTES_SPENT = 0, -1, -2  # why nothing was recorded
TAKEN, TOO_DEEP = -3, -4  # why no child was started
OPEN, THERE, OVER = 1, 2, 3  # of a wait: the signal is there, or the time has passed
SIGNAL_OUTCOMES = {3: "woke", 2: "kept", 1: "present", 0: "unknown"}


def _run(claim: Claim) -> list[Arg]:
    job = claim.job
    return [on_wire(job.id) if claim.named else claim.entry, f"{job.enqueued_at * 1000:.0f}"]


def read(ops: Ops, claim: Claim) -> Op[Records]:
    return ops.op("steps", _run(claim), records)


def _listed(one: JobState[Any]) -> list[Arg]:
    name = f"\n{one.entry}" if one.state == "dead" else on_wire(one.job.id)
    return [name, f"{one.job.enqueued_at * 1000:.0f}" if one.job.enqueued_at else ""]


def of_job(ops: Ops, one: JobState[Any]) -> Op[Records]:
    """Read the records of a listed job."""
    return ops.op("steps", _listed(one), records)


@frozen
class Head:
    """The begin of a run, in seconds, its build, and the record in which it stands."""

    began: float
    build: str
    at: str
    kind: str
    waits_for: str
    held: int  # ms, until when it was held back for such a build


def _head(row: Any) -> Head | None:
    if not row:
        return None
    _number, began, name, kind, _due, build, waits_for, held = row
    return Head(began / 1000, text(build), text(name), text(kind), text(waits_for), held)


def heads(ops: Ops, jobs: Sequence[JobState[Any]]) -> Op[list[Head | None]]:
    """Read the heads of the runs of listed jobs. A job that has taken no steps has none."""
    args = [arg for one in jobs for arg in _listed(one)]
    return ops.op("runs", args, lambda reply: list(map(_head, reply)))


def build(ops: Ops, claim: Claim, name: str) -> Op[bool]:
    """Note the build of the worker that begins a run, before its first record."""
    return ops.op("build", [claim.worker, claim.entry, claim.count, *_run(claim), name], bool)


def record(
    ops: Ops,
    claim: Claim,
    number: int,
    name: str,
    value: bytes | None,
    *,
    kind: str = "step",
    ended: bool,
    took: float,
    ttl: float,
) -> Op[int]:
    """Record a step, and renew the lease. The answer is the record's number, or why there is
    none."""
    duration = "" if claim.duration is None else term("duration", claim.duration)
    # not rounded up: a step does not begin before the record of the step before it
    ms = max(0, int(took * 1000))
    args: list[Arg] = [
        claim.worker,
        claim.entry,
        claim.count,
        claim.token,
        duration,
        term("ttl", ttl, zero=True),
    ]
    args += [*_run(claim), number, name, kind, int(ended), claim.job.attempt, ms]
    return ops.op("step", [*args, *([] if value is None else [value])], int)


def _waiting(name: str, kind: str, reply: Any) -> Record | int:
    code, *rest = reply
    if code <= 0:
        return int(code)
    value: bytes | None = None
    due = int(code == OVER)  # one that is over was due long ago
    if code == OPEN:
        due = max(0, rest[1])
    elif code == THERE and len(rest) > 1 and rest[1] is not None:
        value = raw(rest[1])
    return Record(rest[0], name, kind, 1, int(code == THERE), 0, value, due)


def wait(ops: Ops, claim: Claim, name: str, kind: str, due: str) -> Op[Record | int]:
    """Record that a run sleeps until *due*, or waits for a signal, unless that is over. The answer
    is the record, or why there is none.
    """
    args: list[Arg] = [claim.worker, claim.entry, claim.count, *_run(claim), name, kind, due]
    traced = str(getattr(claim, "trace", None) or "")
    return ops.op("wait", [*args, claim.job.attempt, traced], partial(_waiting, name, kind))


def _parted(reply: Any) -> list[str] | None:
    held, *rest = reply
    return list(map(text, rest[1:])) if held else None


def suspend(
    ops: Ops,
    claim: Claim,
    waits: Sequence[int],
    *,
    release_key: bool = False,
    every: bool = False,
) -> Op[list[str] | None]:
    """Suspend a run until the first of the sleeps, waits and children with these numbers is over,
    or with *every* all of them, which are children, or one has failed. The answer is `None` if the
    lease was lost.
    """
    args: list[Arg] = [claim.worker, claim.entry, claim.count, claim.token, *_run(claim)]
    return ops.op("suspend", [*args, int(release_key), int(every), claim.began, *waits], _parted)


def child(
    ops: Ops, claim: Claim, name: str, job: NewJob[Any], context: Context = tuple
) -> Op[Record | int]:
    """Start a child. The answer is its record, which has this *name*, or why there is none.
    *context* makes its trace headers. Raises `ConfigurationError` for a queue of another group.
    """
    keys, _, delay, fields = ops.follow(job)
    level = [keys.key("jobs"), *keys.levels(LEVELS_AT_MOST)][job.priority]
    others = [*(keys.key(key) for key in FOLLOWED), level, keys.key("links")]
    args: list[Arg] = [claim.worker, claim.entry, claim.count, *_run(claim), name]
    args += [claim.job.attempt, delay, job.priority, *fields, *trace_headers(job.headers, context)]
    args += [PARENT, f"{claim.job.queue} {claim.job.id}"]
    return ops.op("child", args, partial(_child, name, keys.queue), others)


def _child(name: str, queue: str, reply: Any) -> Record | int:
    code, *started = reply
    if not started:
        return int(code)
    return Record(started[0], name, "child", 1, 0, 0, None, 0, child=text(started[1]), queue=queue)


def elsewhere(ops: Ops, job: NewJob[Any], shards: int | None) -> Keys | None:
    """Return the keys of a child's queue, or `None` if the child is in its parent's slot. A sharded
    queue has other keys in each slot. *shards*: their number, if that is known."""
    keys = Keys.of(job.queue or str(ops.keys.queue), ops.namespace)
    shard = ops.keys.shard
    stays = shard is None or job.key is None or shard.covers(job.key)
    if shards is not None:
        stays = stays and (shards > 1) == (shard is not None)
    return None if stays and keys.group == ops.keys.group.partition("~")[0] else keys


def child_away(
    ops: Ops, claim: Claim, name: str, keys: Keys, id: str, number: int = 0
) -> Op[Record | int]:
    """Record a child that is to be started in another slot, in the queue with these *keys*. The
    answer is its record, or why there is none. *number* is of the record, if its child is to be
    started elsewhere.
    """
    args: list[Arg] = [claim.worker, claim.entry, claim.count, *_run(claim), name]
    args += [claim.job.attempt, number, keys.prefix, id]

    def decode(reply: Any) -> Record | int:
        code, *made = reply
        if not made:
            return int(code)
        return Record(
            made[0], name, "child", 1, 0, 0, None, 0, home=keys.prefix, child=id, depth=made[1]
        )

    return ops.op("child_away", args, decode)


def adopt(
    ops: Ops, claim: Claim, record: Record, job: NewJob[Any], context: Context = tuple
) -> Op[bool]:
    """Start a recorded child in another slot, unless that was done before. The answer is false if
    its shard takes no new jobs."""
    there = at_home(ops, record.home)
    _, _, delay, fields = ops.follow(evolve(job, id=record.child), there.keys)
    own, enqueued = _run(claim)
    args: list[Arg] = [ops.keys.prefix, own, enqueued, record.number, record.depth]
    args += [wire_id(record.child), delay, *fields, *trace_headers(job.headers, context)]
    args += [PARENT, f"{claim.job.queue} {claim.job.id}"]
    levels = there.keys.levels(LEVELS_AT_MOST)
    return there.op("adopt", args, lambda reply: reply >= 0, levels)


def at_home(ops: Ops, home: str) -> Ops:
    return Ops(Keys.at_prefix(home), namespace=ops.namespace)


@frozen
class Reports:
    open: bool  # there are children that have not ended
    words: Sequence[bytes]  # of each child that has ended, the id and the report


def reports(ops: Ops, home: str, known: Sequence[bytes]) -> Op[Reports]:
    """List how children in the queue *home* have ended, if their parents are in the queue of *ops*.
    Forget the reports of the children *known*."""
    there = at_home(ops, home)

    def decode(reply: Any) -> Reports:
        return Reports(bool(reply[0]), list(map(raw, reply[1:])))

    extra = [there.keys.key(f"reports:{ops.keys.prefix}")]
    return there.op("reports", [JOBS_PER_SCRIPT, *known], decode, extra)


def learn(ops: Ops, home: str, found: Reports) -> Op[bool]:
    """Record how children have ended. The answer is false if no child of a run here is left in that
    queue."""
    return ops.op("learn", [home, int(found.open), *found.words], bool)


def hold(ops: Ops, claim: Claim, waits_for: str) -> Op[list[str] | None]:
    """Hold a run back for a worker of another build. The answer has the builds of living workers,
    or is `None` if the lease was lost.
    """
    fence: list[Arg] = [claim.worker, claim.entry, claim.count, claim.token]
    return ops.op("hold", [*fence, *_run(claim), claim.began, waits_for], _parted)


def unpin(ops: Ops, limit: int, builds: Sequence[str]) -> Op[int]:
    """Let runs that were held back for these builds go on now. The answer is their number."""
    return ops.op("unpin", [limit, *builds], int)


def signal(ops: Ops, id: str, name: str, by: str, value: bytes | None) -> Op[int]:
    """Send a signal to a run. *by* names its sender. Answers a number of `SIGNAL_OUTCOMES`, or why
    it was refused.
    """
    return ops.op("signal", [wire_id(id), name, by, *([] if value is None else [value])], int)


def progress(ops: Ops, claim: Claim, fraction: float, words: str) -> Op[bool]:
    """Note how far a job has come. The answer is false if its lease is lost."""
    args: list[Arg] = [
        claim.worker,
        claim.entry,
        claim.count,
        *_run(claim),
        f"{fraction:.6g}",
        words,
    ]
    return ops.op("progress", args, bool)


def own(rows: Sequence[Record]) -> dict[str, Record]:
    """Map the names of steps, sleeps and waits to their records, without signals that no wait has
    taken. The record of an undoing has the name ''."""
    return {
        one.name: one for one in rows if one.kind != "signal" and (one.name or one.kind in MODES)
    }
