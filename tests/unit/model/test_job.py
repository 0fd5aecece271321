"""The values of the API are frozen and comparable where that makes sense. Their sums are right."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import attrs
import pytest

from headrace import (
    Counts,
    Event,
    FanOut,
    FlowJob,
    FlowState,
    Job,
    JobState,
    Lease,
    NewJob,
    Next,
    Receipt,
)
from headrace._model.job import NO_HEADERS, Cause, Claim, Lost, make_job
from headrace._model.views.jobs import JobView, Moment
from headrace._model.views.texts import Payload
from headrace.inspect import Repairs
from tests.support.facts import each


def test_a_job_is_frozen() -> None:
    """A job is frozen in every way of making it."""
    given = ("i", b"x", "q", NO_HEADERS, 2, 1.5)
    for job in (Job(*given), make_job(*given)):
        assert (job.id, job.payload, job.queue, job.headers, job.attempt, job.enqueued_at) == given
        assert type(job) is Job
        for name in ("id", "payload", "attempt", "headers"):
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                setattr(job, name, None)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            del job.id


def test_a_job_is_itself_only() -> None:
    """Two deliveries of one job are unequal, so a set of jobs is a set of deliveries."""
    one, other = Job("i", b"x", "q"), Job("i", b"x", "q")
    assert one != other
    assert len({one, other, one}) == 2
    assert repr(one).startswith("Job(id='i', payload=b'x', queue='q'")


def test_headers_of_a_plain_job_can_not_be_changed() -> None:
    with pytest.raises(TypeError):
        Job("i", b"x", "q").headers["a"] = "b"  # type: ignore[index]


def test_lost() -> None:
    job = Job("i", b"x", "q")
    before = job.lost
    assert (bool(before), before.is_set(), repr(before)) == (False, False, "Lost(False)")
    job.lost.set()
    assert (bool(before), before.is_set(), repr(job.lost)) == (True, True, "Lost(True)")
    assert isinstance(before, Lost)
    assert "lost" not in repr(job)


@each("headers", [NO_HEADERS, {"a": "b"}])
@each("make", [Job, make_job])
def test_a_job_can_be_copied_and_pickled(make: Any, headers: Any) -> None:
    """A handler may send it to another process."""
    job = make("i", b"x", "q", headers, 3, 1.5)
    for twin in (copy.copy(job), copy.deepcopy(job), pickle.loads(pickle.dumps(job))):
        assert type(twin) is Job
        assert (twin.id, twin.payload, twin.queue, twin.headers) == ("i", b"x", "q", headers)
        assert (twin.attempt, twin.enqueued_at, bool(twin.lost)) == (3, 1.5, False)
    state = JobState(job, "leased", "w", 1.5)
    assert pickle.loads(pickle.dumps(state)).job.id == "i"


def test_counts_add_up() -> None:
    counts = Counts(1, 2, 3, 4, 0, 5, 100, 40, 20, 15, 10)
    assert counts.present == 15
    assert counts.lost == 0
    assert attrs.evolve(counts, completed=39).lost == 1
    assert Counts() == Counts(waiting=0)
    assert Counts().lost == 0


def test_repairs_add_up() -> None:
    assert not Repairs()
    mended = Repairs(dangling=2, deleted=1) + Repairs(dangling=1, workers=4)
    assert mended == Repairs(dangling=3, workers=4, deleted=1)
    assert (bool(mended), mended.total) == (True, 8)


def test_values_compare_by_what_they_say() -> None:
    assert Receipt("i", True) == Receipt("i", True) != Receipt("i", False)
    assert NewJob(b"x", "i") == NewJob(payload=b"x", id="i")
    assert len({Receipt("i", True), Receipt("i", True)}) == 1


def test_the_entry_is_no_part_of_a_state_s_repr() -> None:
    assert "entry" not in repr(JobState(Job("i", b"x", "q"), "waiting", entry="1-0"))


def test_claims_are_themselves() -> None:
    job = Job("i", b"x", "q")
    one, other = (Claim(job, "w", "1-0", 1, 1) for _ in range(2))
    assert one != other
    assert len({one, other}) == 2


@each("payload", [b"x" * 100_000, "ä" * 100_000, list(range(20_000)), {"a": "x" * 100_000}])
def test_a_large_payload_is_not_printed_whole(payload: Any) -> None:
    """The limit holds for a job and for the values that contain one."""
    job = Job("i", payload, "q")
    claim = Claim(job, "w", "1-0", 1, 1)
    for shown in (job, NewJob(payload), claim, Lease(claim, None), JobState(job, "waiting")):  # type: ignore[arg-type]
        assert len(repr(shown)) < 600
        assert f"{len(payload if len(payload) >= 100_000 else repr(payload)):,}" in repr(shown)
    assert repr(NewJob(b"x" * 200)).startswith(f"NewJob(payload={b'x' * 200!r}"[:150])


def test_nothing_else_that_may_be_large_is_printed_whole() -> None:
    """Headers, reasons, tracebacks and results are cut in the `repr` of every value that has
    them."""
    large: Any = "x" * 100_000
    many: Any = {str(n): "x" * 100 for n in range(1000)}
    shown = Payload("text", large, 5)
    for value in (
        Job("i", b"x", "q", many), NewJob(b"x", headers=many), JobState(Job("i", b"x", "q"), "dead", reason=large),
        Cause(large, large), Event("dead", "q", "i", 1.0, reason=large), Next("a", result=large),
        FanOut([large] * 10, result=large), FlowState("i", "running", "a", many, many, many, tuple(many)),
        FlowJob("i", b"x", "q", many, attributes=many, results=many, children=many, failed=tuple(many)),
        JobView(
            "i", "q", "dead", 1, 0, None, shown, many, reason=large, traceback=large, result=shown,
            timeline=(Moment(None, large),),
        ),
    ):  # fmt: skip
        assert len(repr(value)) < 1700, type(value)


def test_a_small_payload_is_printed_whole() -> None:
    payload = {"to": "ada", "text": "x" * 150}
    assert repr(payload) in repr(Job("i", payload, "q"))


def test_values_of_a_type_are_made_as_others() -> None:
    assert NewJob[int](5) == NewJob(5)
    assert Job[int]("i", 5, "q").payload == 5
    assert type(pickle.loads(pickle.dumps(Job[int]("i", 5, "q")))) is Job
