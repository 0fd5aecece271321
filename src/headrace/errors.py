"""The errors that headrace raises, in one tree under `HeadraceError`. Each message says how to go
on.

    HeadraceError
    ├── ConfigurationError (ValueError)   nothing was sent: mend the settings
    ├── CodecError (ValueError)           a payload could not be encoded; nothing was sent
    ├── PrioritiesMismatch                the queue has more priority levels than were given
    ├── ShardsMismatch                    the queue's group has another number of shards
    ├── TooManySchedules                  the queue has as many schedules as it may
    ├── NotDurable                        a call happened, but on too few replicas or disks yet
    ├── QueueFull                         the queue has as many waiting jobs as it may
    ├── ReplyError                        the server answered something no headrace script answers
    ├── OutcomeUnknown                    a call was too long on its way: it happened, or did not
    ├── StreamStopped                     `enqueue_stream` ended early: how many jobs are in
    ├── LeasesLeft                        a worker has stopped while its server was away
    ├── JobFailed                         a job whose result was asked for ended without one
    │   └── ChildFailed                   the same of a child, raised in the handler of its parent
    ├── NameTaken                         another worker lives under this worker's name
    ├── BatchError                        raised by batch handlers: a verdict per job
    ├── StepFailed                        a step does not run again, as its run was undone
    └── InDoubt                           a step that runs once has begun, and perhaps ended

    Verdict                               raised or returned *by handlers*, to say how a job ends
    └── RetryLater · DeadLetter · Release · Complete

    BaseException                         raised *in handlers* by their steps, to end a delivery
    └── RunLost · RunSuspended

A verdict is no `HeadraceError`, so `except HeadraceError` in a handler lets it pass.
Redis's own transport errors (`redis.ConnectionError`, …) pass through as they are.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from traceback import TracebackException
from types import TracebackType
from typing import Any

from headrace._installing import install_command

__all__ = [
    "BatchError",
    "ChildFailed",
    "CodecError",
    "Complete",
    "ConfigurationError",
    "DeadLetter",
    "HeadraceError",
    "InDoubt",
    "JobFailed",
    "LeasesLeft",
    "NameTaken",
    "NotDurable",
    "OutcomeUnknown",
    "PrioritiesMismatch",
    "QueueFull",
    "Release",
    "ReplyError",
    "RetryLater",
    "RunLost",
    "RunSuspended",
    "ShardsMismatch",
    "StepFailed",
    "StreamStopped",
    "TooManySchedules",
    "Verdict",
]


REASON_CHARACTERS = 10_000  # characters of a reason that are kept
TRACEBACK_BYTES = 4096  # of a traceback that are kept
_PACKAGE = f"{Path(__file__).parent}{os.sep}"


def _remade(*names: str) -> Any:
    """Make the `__reduce__` of an error whose class takes these attributes.

    An error that was raised in another process has been pickled.
    """

    def reduce(error: Any) -> tuple[Any, ...]:
        return error.__class__, tuple(getattr(error, name) for name in names)

    return reduce


class HeadraceError(Exception):
    """The root of everything headrace raises itself.

    It is raised itself when the embedded server does not start or stop. The message quotes the
    server's log.

    Next step: catch it to catch all of these.
    """


class ConfigurationError(HeadraceError, ValueError):
    """A bad setting or URL, or a missing extra, found before anything is sent.

    Next step: correct the setting that the message names.
    """


class CodecError(HeadraceError, ValueError):
    """The queue's codec could not encode a payload (nothing was sent), or decode one (its job is
    put aside).

    A handler's result that it can't encode is logged, and the job is complete without it.

    Next step: send another value, or give the queue another codec.
    """


class PrioritiesMismatch(HeadraceError):
    """The queue has more priority levels than were given. The call changed nothing.

    *levels* is the number that the queue has. A worker logs `levels_unknown` instead.

    Next step: give as many `priorities=`, or more, wherever the queue is used.
    """

    def __init__(self, levels: int) -> None:
        super().__init__(
            f"this queue has {levels} priority levels: give priorities={levels}, or more, wherever it is used"
        )
        self.levels = levels

    __reduce__ = _remade("levels")


NO_TABLE = -1  # what `ShardsMismatch` says where there is no table any more


class ShardsMismatch(HeadraceError):
    """The queue's group never had the given number of shards, or its table can't be used.

    The call changed nothing. *shards* is the number that the group has. It is 0 or less where the
    table can't be used.

    Next step: give that many `shards=` everywhere. If the table is gone, start a client that knew
    it, or restore it.
    """

    def __init__(self, shards: int) -> None:
        text = "the table of this group's shards is of another form than this version writes"
        if shards > 0:
            text = f"the queues of this group have {shards} shards: give shards={shards} wherever they are used"
        elif shards < 0:
            what = (
                "gone, and shards are there"
                if shards == NO_TABLE
                else f"older than version {-shards}, which shards know"
            )
            text = (
                f"the table of this group's shards is {what}: a client that knows it, as a running worker does, writes "
                "it back within a second; if none is left, restore the key <namespace>:{<group>}:shards from a backup"
            )
        super().__init__(text)
        self.shards = shards

    __reduce__ = _remade("shards")


class TooManySchedules(HeadraceError):
    """The queue has as many schedules as a queue may have. None was added.

    *limit* is that number.

    Next step: end some with `unschedule()`, or use another queue.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(f"this queue has {limit} schedules: unschedule some, or use another queue")
        self.limit = limit

    __reduce__ = _remade("limit")


class NotDurable(HeadraceError):
    """The call succeeded, but its write was not confirmed as `durable` asks.

    *wanted* says that, such as `replicas:1`. *replicas* is the number of replicas that have the
    write. *fsynced* says whether it is on the primary's disk. `receipts` are the receipts of the
    jobs, which *are* in the queue. `answers` is the value that the call would have returned. A
    repetition with ids adds none of them twice, and waits again.

    Next step: repeat it with ids, or go on.
    """

    def __init__(
        self,
        wanted: str,
        replicas: int = 0,
        fsynced: bool = False,
        reason: str = "",
        answers: Sequence[Any] = (),
    ) -> None:
        has = f"{replicas} replicas have it" if "replicas" in wanted else "it is not on the disk"
        super().__init__(
            f"it happened, and is not durable as wanted ({wanted}): {reason or has}; a failover or power cut now may "
            "undo it: repeat it with an id, or go on"
        )
        self.wanted, self.replicas, self.fsynced, self.reason = wanted, replicas, fsynced, reason
        self.answers = list(answers)
        self.receipts: list[Any] = []

    # receipts know a queue, which is not pickled
    __reduce__ = _remade("wanted", "replicas", "fsynced", "reason")


class QueueFull(HeadraceError):
    """The job, or a part of a batch, was not added, because the queue's bound of waiting jobs is
    reached.

    *waiting* jobs wait there, and *max_waiting* may. `receipts` are for the earlier parts of an
    `enqueue_many`, which are in the queue. In a sharded queue the numbers are for the *shard* of
    that number, which is `None` in other queues.

    Next step: enqueue later, or wait for room with `full="block"`.
    """

    outcome = "refused"

    def __init__(self, waiting: int, max_waiting: int, shard: int | None = None) -> None:
        what = "max_waiting" if shard is None else f"of max_waiting the share of shard {shard}"
        there = "" if shard is None else " there"
        super().__init__(
            f"{waiting} jobs wait{there}, and {what} is {max_waiting}: enqueue later, or wait for room with "
            "full='block'"
        )
        self.waiting, self.max_waiting, self.shard = waiting, max_waiting, shard

    __reduce__ = _remade("waiting", "max_waiting", "shard")


class StreamStopped(HeadraceError):
    """`enqueue_stream` ended early, by its cause. The first *position* jobs of the stream are
    surely in the queue.

    After a broken connection some of the next jobs may be, too. With ids, a repetition adds none of
    them twice.

    Next step: go on after `position`; with ids, you may send more of them again.
    """

    def __init__(self, position: int, cause: Exception | None = None) -> None:
        why = "" if cause is None else f": {describe_error(cause)}"
        super().__init__(
            f"the first {position} jobs of the stream are in the queue; go on with the next{why}"
        )
        self.position = position

    __reduce__ = _remade("position")


class ReplyError(HeadraceError):
    """The server's reply has a form that no script of this version gives.

    Another program answers on this address, or wrote a key of ours, or a proxy rewrites replies.

    Next step: look at the address.
    """


class OutcomeUnknown(HeadraceError):
    """A call went unanswered for so long that the server may have forgotten it. It happened, or did
    not.

    It is not sent again, for it might happen twice. This takes minutes, so the process was stopped,
    or the machine slept.

    Next step: look whether it happened; with an `id`, enqueue again.
    """


class LeasesLeft(HeadraceError):
    """A worker stopped while its server was away, so it could neither release its jobs nor
    report how they ended.

    *leases* has queue and id of each job. They come back by themselves, as the jobs of a dead
    worker do.

    Next step: nothing.
    """

    def __init__(self, leases: Sequence[tuple[str, str]]) -> None:
        some = ", ".join(f"{queue} {name}" for queue, name in leases[:5])
        more = ", …" if len(leases) > 5 else ""
        super().__init__(
            f"the worker has stopped, and the server did not answer: {len(leases)} job(s) stay leased until its "
            f"heartbeat runs out, and then run again: {some}{more}"
        )
        self.leases = list(leases)

    __reduce__ = _remade("leases")


class JobFailed(HeadraceError):
    """The job *id* has no result, and will have none. Its *state* is `dead`, `cancelled` or
    `deleted`.

    `cancelled` is said for `result_ttl`. With a `history` also `expired`, where the result was kept
    no longer, and `unknown`, where nothing is known of the id. *reason* is the reason of its dead
    letter, or `None` where nothing says why.

    Next step: nothing, or look at the dead letter.
    """

    def __init__(self, id: str, state: str, reason: str | None = None) -> None:
        super().__init__(f"job {id!r} is {state}{f': {reason}' if reason else ''}")
        self.id, self.state, self.reason = id, state, reason

    __reduce__ = _remade("id", "state", "reason")


class ChildFailed(JobFailed):
    """The child *id* of a run has no result. Its *state* is `dead`, `cancelled`, `deleted`, or
    `unknown`.

    The failure is recorded, so it comes again in each later delivery of the parent. A handler that
    lets it pass makes its job a dead letter at once. *reason* is the reason of the child's dead
    letter, or `None`.

    Next step: mend the child's cause, then `redrive` the parent from the child's step.
    """


class NameTaken(HeadraceError):
    """Another worker lives under the name that was given to this one.

    Give each process a name of its own, or none. A name is free once its worker has stopped, or
    been dead for a moment.

    Next step: give each process its own name, or none, or stop the other.
    """


class Verdict(Exception):
    """Base of the exceptions that a handler raises, or returns, to say how its job ends. Both mean
    the same.

    It is no `HeadraceError`, so `except HeadraceError` in a handler lets it pass.

    Next step: raise or return one of its four kinds.
    """


class RetryLater(Verdict):
    """Try the job again after *delay*, which is seconds, a `timedelta`, or an aware `datetime`.

    Spends no attempt unless `spend=True`.

    Next step: nothing: the job is back after the delay.
    """

    def __init__(
        self, delay: float | timedelta | datetime = 0.0, reason: str = "", *, spend: bool = False
    ) -> None:
        when = f"in {delay} s" if isinstance(delay, (int, float)) else f"after {delay}"
        super().__init__(reason or f"retry {when}")
        self.delay, self.reason, self.spend = delay, reason, spend

    def __reduce__(self) -> tuple[Any, ...]:  # raised in another process, it is pickled
        return type(self), (self.delay, self.reason), {"spend": self.spend}


class DeadLetter(Verdict):
    """The job will never work. Keep it with *reason* among the dead letters.

    Next step: `queue.admin.redrive()` when it can work.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Release(Verdict):
    """Give the job back untouched, to the front. No attempt is spent.

    Next step: nothing: the job is in front again.
    """


class Complete(Verdict):
    """The job is done. Its *result* is kept as if the handler had returned it.

    Next step: nothing.
    """

    def __init__(self, result: Any = None) -> None:
        super().__init__("the job is done")
        self.result = result

    __reduce__ = _remade("result")


class BatchError(HeadraceError):
    """Some jobs of a batch ended otherwise than by completion.

    *failures* maps job ids to the exception that each ended with. That is a `Verdict`, or any
    other, settled by the handler's `Retry`. The jobs not named are completed.

    Next step: nothing: all other jobs are completed.
    """

    def __init__(self, failures: Mapping[str, BaseException]) -> None:
        super().__init__(
            f"{len(failures)} job(s) of the batch failed: {', '.join(list(failures)[:5])}"
        )
        self.failures = dict(failures)

    __reduce__ = _remade("failures")


class InDoubt(HeadraceError):
    """A step that runs once began in an earlier delivery, which ended before the step's end was
    recorded.

    The step *step* may have had its effect or not, and is never run again. Find out, outside of
    this step. Then complete the job, or let an operator forget the step with
    `queue.admin.redrive(id, from_step=…)`.

    Next step: find out whether it had its effect: see `docs/how-to/durable-steps.md`.
    """

    def __init__(self, step: str) -> None:
        super().__init__(
            f"step {step!r} runs once, and an earlier delivery began it without recording its end: find out whether it "
            "had its effect; it is not run again"
        )
        self.step = step

    __reduce__ = _remade("step")


class StepFailed(HeadraceError):
    """The step *step* of job *job* failed before its run was undone, and does not run again.

    It is raised in a replay, where the step has no record. A handler that caught the step's own
    error before `job.undo()` catches this one, too.

    Next step: catch it like the step's own error: see `docs/how-to/durable-steps.md`.
    """

    def __init__(self, job: str, step: str) -> None:
        super().__init__(
            f"step {step!r} of job {job!r} had not succeeded when the run was undone, and does not run any more: "
            "catch Exception around it, or let the step return its failure as a value"
        )
        self.job, self.step = job, step

    __reduce__ = _remade("job", "step")


class Killed(HeadraceError):
    """The child process in which an isolated handler ran has ended before its job did.

    It was killed at the job's deadline, or died. The text says by which signal, exit status or
    limit. It counts as a failure of that job alone.

    Next step: look at what the job does; `memory_mb` and `deadline` are the handler's.
    """


class RunLost(BaseException):
    """The handler of job *job* has lost its lease, or went on after its run was suspended. Nothing
    more is recorded.

    Another worker goes on with the job, or it is gone. Raised by `job.step`, `sleep` and
    `wait_for`. It is no `Exception`, so that a handler that catches everything does not go on. Let
    it pass.

    Next step: let it pass.
    """

    def __init__(self, job: str) -> None:
        super().__init__(
            f"job {job!r} is not this handler's any more: another worker goes on with it, or it is gone"
        )
        self.job = job

    __reduce__ = _remade("job")


class RunSuspended(BaseException):
    """The run of job *job* sleeps, or waits, in its step *step*.

    It does so until *due*, in seconds of the server, or until a signal if that is `None`. It ends
    this delivery. It is raised by `job.sleep` and `wait_for`, for the worker. It is no `Exception`.
    Let it pass.

    Next step: let it pass.
    """

    def __init__(self, job: str, step: str, due: float | None = None) -> None:
        super().__init__(f"job {job!r} is suspended in {step!r}")
        self.job, self.step, self.due = job, step, due

    __reduce__ = _remade("job", "step", "due")


def describe_error(error: object) -> str:
    """Describe an exception in words (a group with its causes), cut to the length that is kept.

    Its class and its `__str__` are the user's, and may raise.
    """
    name: str = type.__dict__["__name__"].__get__(type(error))  # whatever its metaclass makes of it
    try:
        text = f"{name}: {error}"[:REASON_CHARACTERS]
        causes: tuple[BaseException, ...] = getattr(error, "exceptions", ())
        for cause in causes if isinstance(error, BaseExceptionGroup) else ():
            if len(text) >= REASON_CHARACTERS:
                break
            text = f"{text}; {describe_error(cause)}"
        return text[:REASON_CHARACTERS]
    except BaseException:  # whatever it is
        return name[:REASON_CHARACTERS]


def users(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception from the first frame of other code on, or all of it if
    there is none.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frames = frames.tb_next
    return frames or error.__traceback__


def class_path(error: BaseException) -> str:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}"


def traced(error: BaseException) -> str:
    """Format an exception and its traceback, without our own frames before its first.

    The text is cut in the middle to the length that is kept. It is empty if the exception was never
    raised.
    """
    try:
        if error.__traceback__ is None and error.__cause__ is None:
            return ""
        whole = TracebackException(type(error), error, users(error))
        text = "".join(whole.format()).encode("utf-8", "backslashreplace")
    except BaseException:  # its class and `__str__` are the user's and may raise
        return ""
    if len(text) > TRACEBACK_BYTES:
        text = text[: TRACEBACK_BYTES // 4] + b"\n[...]\n" + text[-(TRACEBACK_BYTES // 2 + 1000) :]
    return text.decode("utf-8", "ignore")


def without_extra(what: str, extra: str) -> str:
    return f"{what} is an extra: {install_command(extra)}"


@contextmanager
def requiring(feature: str, extra: str, *packages: str) -> Generator[None, None, None]:
    """Raise `ConfigurationError`, which names the extra, if one of *packages* can't be imported.

    Without *packages*, any package counts.
    """
    try:
        yield
    except ImportError as error:
        if packages and (error.name or "").partition(".")[0] not in packages:
            raise
        raise ConfigurationError(without_extra(feature, extra)) from None
