"""A queue with a history tells how, when and by which worker its jobs ended, even if no other
record is left."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace import Counts, JobFailed, NewJob, Queue, Worker
from headrace.codecs import JSONCodec
from headrace.errors import RunSuspended
from headrace.inspect import Inspector
from tests.support.awaiting import PATIENCE, until
from tests.support.colours import Connect
from tests.support.engines import Running
from tests.support.facts import each
from tests.support.servers import Server
from tests.support.steps import LONG, key, leased

MANY = 15  # new queues, each with a job that may end before its history begins


@pytest.fixture
def queue(connect: Connect) -> Any:
    return connect(history=1000)


def test_it_says_completed_when_and_by_whom(queue: Any) -> None:
    lease = leased(queue, id="a")
    assert lease.retry()
    (lease,) = queue.lease_many(5)
    before = time.time()
    assert lease.complete(b"r")
    state = queue.find("a")
    assert (state.state, state.worker, state.reason, state.due) == (
        "completed",
        lease.worker,
        None,
        None,
    )
    assert abs(state.since - before) < PATIENCE
    assert (state.job.id, state.job.attempt, state.job.payload, state.job.queue) == (
        "a",
        2,
        b"x",
        "q",
    )
    assert "completed" in repr(state)


def test_a_fair_queue_tells_that_a_lease_expired_for_the_last_time(connect: Connect) -> None:
    """The call that finds a job without attempts records its end."""
    queue = connect(history=1000, fair="tenant", max_attempts=1)
    queue.enqueue(b"x", id="a", headers={"tenant": "t"})
    assert len(queue.lease_many(1)) == 1
    assert queue.admin.expire() == 1
    assert queue.lease_many(1) == []
    state = queue.find("a")
    assert (state.state, state.job.attempt) == ("dead", 1)
    assert [one.job.id for one in queue.admin.ended()] == ["a"]


def test_what_has_ended_is_listed(queue: Any, connect: Connect) -> None:
    """The oldest end comes first. Each id is listed once with its last end, which `find` tells
    too."""
    assert [*queue.admin.ended()] == []
    for name in ("dead", "cancelled", "purged", "done", "again"):
        queue.enqueue(b"x", id=name)
    leases = {lease.job.id: lease for lease in queue.lease_many(5)}
    assert leases["again"].complete()
    assert leases["dead"].dead_letter("why")
    assert leases["cancelled"].release()
    assert queue.cancel("cancelled")
    assert leases["purged"].release()
    assert queue.admin.purge() == 1
    assert leases["done"].complete(b"r")
    assert leased(queue, id="again").complete()
    for listing in (queue.admin.ended, connect().admin.ended):
        found = [*listing()]
        assert sorted(state.job.id for state in found) == [
            "again",
            "cancelled",
            "dead",
            "done",
            "purged",
        ]
        assert [state.since for state in found] == sorted(state.since for state in found)
        states = {state.job.id: state for state in found}
        assert {name: state.state for name, state in states.items()} == {
            "again": "completed", "dead": "dead", "cancelled": "cancelled", "purged": "deleted", "done": "completed",
        }  # fmt: skip
        assert {state.due for state in found} == {None}
        kept = {name: state.job.payload for name, state in states.items()}
        assert kept == {
            "again": b"x",
            "dead": b"x",
            "done": b"x",
            "cancelled": b"x",
            "purged": None,
        }
        assert {name for name, state in states.items() if state.enqueued_at is None} == {"purged"}
        assert (states["dead"].reason, states["dead"].worker) == ("why", leases["dead"].worker)
        done = queue.find("done")
        shown = ("state", "worker", "since", "reason")
        assert [getattr(done, part) for part in shown] == [
            getattr(states["done"], part) for part in shown
        ]
        assert (done.job.id, done.job.attempt, done.enqueued_at) == (
            "done",
            1,
            states["done"].enqueued_at,
        )


def test_an_ended_job_is_whole(connect: Connect) -> None:
    """The history has its headers, its times and each attempt. An attempt has the worker, the class
    and the place of the error.
    """
    queue = connect(history=10, tracebacks=True)
    receipt = queue.enqueue(b"x", headers={"kind": "mail"})
    for attempt in (1, 2):
        with pytest.raises(LookupError) as failed:
            raise LookupError(f"try {attempt}")
        assert queue.lease().retry(reason=failed.value)
    waits = queue.find(receipt.id)
    assert [one.error for one in waits.attempts] == ["builtins.LookupError"] * 2
    lease = queue.lease()
    assert lease.job.headers == {"kind": "mail"}
    assert lease.complete(b"r")
    (state,) = queue.admin.ended()
    assert state.attempts == queue.find(receipt.id).attempts
    assert (state.job.payload, dict(state.job.headers)) == (b"x", {"kind": "mail"})
    assert (state.enqueued_at, state.job.enqueued_at) == (
        lease.job.enqueued_at,
        lease.job.enqueued_at,
    )
    assert [(one.number, one.reason) for one in state.attempts] == [
        (1, "LookupError: try 1"),
        (2, "LookupError: try 2"),
        (3, None),
    ]
    assert all(
        one.traceback.startswith("Traceback") and "try" in one.traceback
        for one in state.attempts[:2]
    )
    assert [*state.workers] == [lease.worker]
    times = [state.enqueued_at, *(at for one in state.attempts for at in (one.began, one.ended))]
    assert times == sorted(times)
    assert (state.began, state.ended) == (times[1], times[-1])


def test_a_dead_job_has_its_last_attempt(connect: Connect) -> None:
    queue = connect(history=10, max_attempts=2)
    queue.enqueue(b"x", id="out")
    queue.enqueue(b"y", id="buried")
    for lease in queue.lease_many(2):
        assert (
            lease.dead_letter(KeyError("k"))
            if lease.job.id == "buried"
            else lease.retry(reason=ValueError("1"))
        )
    assert queue.lease().retry(reason=ValueError("2"))
    assert [one.reason for one in queue.find("out").attempts] == ["ValueError: 1", "ValueError: 2"]
    (one,) = queue.find("buried").attempts
    assert (one.number, one.error, one.traceback) == (1, "builtins.KeyError", None)
    ended = {state.job.id: state for state in queue.admin.ended()}
    assert {name: len(state.attempts) for name, state in ended.items()} == {"out": 2, "buried": 1}
    assert {name: state.job.payload for name, state in ended.items()} == {
        "out": b"x",
        "buried": b"y",
    }
    assert queue.admin.purge_dead() == 2
    assert [one.reason for one in queue.find("out").attempts] == ["ValueError: 1", "ValueError: 2"]


def test_large_jobs_are_kept_without_their_payloads(queue: Any) -> None:
    """A history is bounded in bytes, and so are the attempts of a job that fails again and
    again."""
    queue.enqueue(b"x" * 70_000, id="large", headers={"kind": "k"})
    assert queue.lease().complete()
    state = queue.find("large")
    assert (state.job.payload, dict(state.job.headers)) == (None, {"kind": "k"})
    assert state.enqueued_at is not None
    queue.enqueue(b"x", id="often")
    for attempt in range(1, 61):
        assert queue.lease().retry(reason=ValueError(f"{attempt} " + "y" * 600), delay=0)
        queue.admin.redrive()
    numbers = [one.number for one in queue.find("often").attempts]
    assert numbers[0] == 1
    assert numbers[-1] > 15
    assert len(numbers) < 40


def test_ends_are_listed_by_kind_and_state(queue: Any) -> None:
    for name in ("a1", "a2", "b1"):
        queue.enqueue(b"x", id=name, headers={"kind": name[0]})
    for lease in queue.lease_many(3):
        assert lease.dead_letter("why") if lease.job.id == "a2" else lease.complete()

    def listed(**only: Any) -> list[str]:
        return sorted(state.job.id for state in queue.admin.ended(**only))

    assert listed(kind="a") == ["a1", "a2"]
    assert listed(state="completed") == ["a1", "b1"]
    assert listed(kind="a", state="dead") == ["a2"]
    assert listed(kind="c") == []
    with pytest.raises(
        ValueError, match="state='done': give one of completed, dead, cancelled, deleted"
    ):
        listed(state="done")
    with pytest.raises(TypeError, match="kind must be a str, not int"):
        listed(kind=1)


def test_more_have_ended_than_a_page(queue: Any) -> None:
    """Ends that come meanwhile are listed too. The removal of a listed end skips no other."""
    names = [receipt.id for receipt in queue.enqueue_many([b"x"] * 450)]
    for lease in queue.lease_many(450):
        assert lease.complete()
    listed = iter(queue.admin.ended())
    first = next(listed).job.id
    queue.enqueue(b"x", id="late")
    assert queue.cancel("late")
    assert sorted([first, *(state.job.id for state in listed if state.job.id != "late")]) == sorted(
        names
    )
    assert "late" in [state.job.id for state in queue.admin.ended()]


def test_what_has_ended_in_any_shard_is_listed(newest_connect: Connect) -> None:
    queue = newest_connect("s", shards=3, history=100)
    jobs = [NewJob(b"x", id=f"i{n}" if n % 2 else None) for n in range(30)]
    names = [receipt.id for receipt in queue.enqueue_many(jobs)]
    for lease in queue.lease_many(30):
        assert lease.complete()
    found = [*queue.admin.ended()]
    assert sorted(state.job.id for state in found) == sorted(names)
    assert [state.since for state in found] == sorted(state.since for state in found)


def test_completed_without_a_result_is_told_from_unknown(queue: Any, connect: Connect) -> None:
    receipt = queue.enqueue(b"x")
    assert queue.lease().complete()
    assert queue.result(receipt.id) is None
    assert receipt.result() is None
    for ask in (queue.result, connect(history=5).result):
        with pytest.raises(JobFailed, match="job 'nobody' is unknown") as failed:
            ask("nobody")
        assert (failed.value.id, failed.value.state, failed.value.reason) == (
            "nobody",
            "unknown",
            None,
        )
    assert connect().result("nobody") is None
    assert queue.find("nobody") is None


def test_how_it_ended_is_told_afterwards(queue: Any, connect: Connect) -> None:
    """Queues that declare no history also tell how a job ended."""
    names = ["cancelled", "late", "purged", "dead"]
    queue.enqueue(b"x", id="dead")
    assert queue.lease().dead_letter("why")
    queue.enqueue(b"x", id="cancelled")
    queue.enqueue(b"x", id="late", delay=LONG)
    assert connect().cancel("cancelled")
    assert connect().cancel("late")
    queue.enqueue(b"x", id="purged")
    assert queue.admin.purge() == 1
    assert queue.admin.purge_dead() == 1  # the letter goes, how it ended stays
    found = {name: queue.find(name) for name in names}
    assert [found[name].state for name in names] == ["cancelled", "cancelled", "deleted", "dead"]
    assert found["dead"].reason == "why"
    for name in names:
        for ask in (queue.result, connect().result):
            with pytest.raises(JobFailed) as failed:
                ask(name, timeout=PATIENCE)
            assert (failed.value.state, failed.value.reason) == (
                found[name].state,
                found[name].reason,
            )
    assert queue.counts() == Counts(enqueued=4, cancelled=2, deleted=1, dead_trimmed=1)


def test_a_result_of_an_earlier_job_is_no_answer(queue: Any) -> None:
    """The id is used again. Only the result of the new job counts."""
    assert leased(queue, id="a").complete(b"old")
    receipt = queue.enqueue(b"x", id="a")
    with pytest.raises(TimeoutError):
        receipt.result(timeout=0)
    assert queue.lease().complete()
    assert (receipt.result(), queue.result("a")) == (None, None)


def test_a_result_that_is_not_kept_any_more(connect: Connect) -> None:
    queue = connect(history=10, result_ttl=0.001)
    assert leased(queue, id="a").complete(b"r")

    until(lambda: not queue.results(["a"]))
    with pytest.raises(JobFailed, match="its result was kept no longer than result_ttl") as failed:
        queue.result("a")
    assert failed.value.state == "expired"
    assert queue.find("a").state == "completed"


def test_at_most_once_is_completed_by_its_lease(queue: Any) -> None:
    queue.enqueue(b"x", id="a")
    lease = queue.lease(at_most_once=True)
    state = queue.find("a")
    assert (state.state, state.worker, state.job.attempt) == ("completed", lease.worker, 1)


@pytest.mark.differs("keys")
def test_it_is_bounded_and_so_is_its_time(connect: Connect, client: Any) -> None:
    queue = connect(history=3, history_ttl=timedelta(minutes=5))
    names = [receipt.id for receipt in queue.enqueue_many([b"x"] * 10)]
    for lease in queue.lease_many(10):
        assert lease.complete()
    assert [name for name in names if queue.find(name) is not None] == names[-3:]
    assert client.hget(key("stats"), "history") == b"3 300000"
    assert sorted(state.job.id for state in queue.admin.ended()) == sorted(names[-3:])
    for part in ("ends", "ended"):
        assert 0 < client.pttl(key(part)) <= 300_000


def test_the_declaration_counts_for_all(connect: Connect, server: Server) -> None:
    """A worker without the option keeps the history too."""
    queue = connect(history=100)
    names = [receipt.id for receipt in queue.enqueue_many([b"x", b"y"])]
    worker = Worker(url=server.url, heartbeat=0.2, timeout=1.0)

    @worker.handler("q", **server.binary.options)
    def handle(job: Any) -> bytes | None:
        return job.payload if job.payload == b"y" else None

    with worker:
        assert queue.admin.drain(PATIENCE)
    states = [queue.find(name) for name in names]
    assert [state.state for state in states] == ["completed"] * 2
    assert len({state.worker for state in states}) == 1
    assert states[0].worker is not None
    assert [queue.result(name) for name in names] == [None, b"y"]


def test_without_one_nothing_is_kept(connect: Connect, client: Any) -> None:
    queue = connect()
    assert leased(queue, id="a").complete()
    queue.enqueue(b"x", id="b")
    assert queue.cancel("b")
    assert (queue.find("a"), queue.result("a")) == (None, None)
    with pytest.raises(JobFailed, match="cancelled"):
        queue.result("b")
    assert not client.exists(key("ends"), key("ended"))
    assert not client.hexists(key("stats"), "history")
    assert [*queue.admin.ended()] == []


def test_a_queue_that_is_deleted_leaves_none(queue: Any, client: Any) -> None:
    assert leased(queue, id="a").complete()
    queue.enqueue(b"x", id="b")
    assert queue.admin.delete() == 1
    assert not client.exists(key("ends"), key("ended"))
    assert (queue.find("a"), queue.find("b")) == (None, None)
    assert leased(queue, id="c").complete()  # and goes on with one
    assert queue.find("c").state == "completed"


def test_a_codec_s_queue(connect: Connect) -> None:
    queue = connect(codec=JSONCodec(), history=10)
    assert leased(queue, {"n": 1}, id="a").complete({"n": 2})
    assert queue.find("a").job.payload == {"n": 1}
    assert queue.result("a") == {"n": 2}


@each(
    ("options", "error"),
    [
        ({"history": -1}, ValueError),
        ({"history": 1_000_001}, ValueError),
        ({"history": "5"}, TypeError),
        ({"history": True}, TypeError),
        ({"history": 5, "history_ttl": 0}, ValueError),
        ({"history": 5, "history_ttl": "1 d"}, TypeError),
    ],
)
def test_bad_ones_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="history"):
        Queue("q", url="redis://127.0.0.1:1", **options)


def test_the_first_job_of_a_producer_with_a_history_is_kept(
    newest_connect: Connect, newest: Server
) -> None:
    """The job is kept even if a worker without the option waits for it."""
    names = [f"q{number}" for number in range(MANY)]
    worker = Worker(url=newest.url)
    for name in names:
        worker.handler(name)(lambda job: job.payload)
    with worker:
        until(lambda: all(newest_connect(name).admin.workers() for name in names))
        for name in names:
            job = newest_connect(name, history=10).enqueue(b"x")
            assert job.result(timeout=PATIENCE) == b"x"
            state = newest_connect(name).find(job.id)
            assert state is not None
            assert state.state == "completed"


@pytest.mark.parametrize("shards", [1, 3])
def test_the_first_job_of_a_worker_with_a_history_is_kept(
    newest_connect: Connect, work: Callable[..., Running], shards: int
) -> None:
    """The job is kept even if its producer lacks the option."""
    queues = [newest_connect(f"q{number}", shards=shards) for number in range(MANY)]
    jobs = [queue.enqueue(b"x") for queue in queues]
    worker = work()
    for queue in queues:
        worker.handler(queue.name, history=10, shards=shards)(lambda job: job.payload)
    with worker:
        until(lambda: sum(queue.counts().completed for queue in queues) == MANY)
    states = [queue.find(job.id) for queue, job in zip(queues, jobs, strict=True)]
    assert [state and state.state for state in states] == ["completed"] * MANY


def test_the_first_job_that_is_leased_by_hand_is_kept(connect: Connect) -> None:
    connect().enqueue(b"x", id="a")
    lease = connect(history=10).lease()
    assert lease.complete()
    assert connect().find("a").state == "completed"


@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_a_run_that_has_ended_keeps_what_it_did(connect: Connect, server: Server, end: str) -> None:
    """The history keeps the steps, signals and progress of the run, even if it ended in a later
    delivery."""
    queue = connect(history=10, codec=JSONCodec())
    worker = Worker(url=server.url, heartbeat=0.2, timeout=1.0)

    @worker.handler("q", codec=JSONCodec(), **server.binary.options)
    def handle(job: Any) -> None:
        job.step("pay", lambda: {"paid": 7})
        job.progress(0.5, "half of it")
        job.step("wait a little", time.sleep, 0.0)
        job.wait_for("go")
        if end == "cancelled":
            job.sleep("for ever", 86_400)

    queue.enqueue({"n": 1}, id="i")
    with worker:
        until(lambda: queue.counts().blocked == 1)
        until(lambda: (state := queue.find("i")) is not None and state.progress is not None)
        assert queue.signal("i", "go", "yes") == "woke"
        until(
            lambda: (
                queue.counts().completed == 1 if end == "completed" else queue.counts().delayed == 1
            )
        )
    assert end == "completed" or queue.cancel("i")
    state = queue.find("i")
    steps = {step.name: (step.state, step.result) for step in state.steps}
    assert state.state == end
    assert steps.pop("for ever", ("sleeping", None)) == ("sleeping", None)
    assert steps == {
        "pay": ("done", {"paid": 7}),
        "wait a little": ("done", None),
        "go": ("signalled", "yes"),
    }
    assert all(
        step.ended is not None and step.began <= step.ended
        for step in state.steps
        if step.name != "for ever"
    )
    assert (state.progress.fraction, state.progress.text) == (0.5, "half of it")
    with Inspector(url=server.url, codecs={"q": JSONCodec()}) as inspector:
        view = inspector.job("q", "i")
    assert view is not None
    assert [(step.name, step.result is None) for step in view.steps] == [
        (step.name, step.result is None) for step in state.steps
    ]
    assert view.progress is not None


def test_a_large_run_keeps_its_first_values(server: Server) -> None:
    """All steps are kept, and values up to 64 KiB."""
    with server.queue("q", history=10) as queue:
        lease = leased(queue, id="i")
        for number in range(5):
            lease.job.step(f"s{number}", lambda: "v" * 20_000)
        assert lease.complete()
        state = queue.find("i")
    assert state is not None
    steps = state.steps
    assert [(step.name, step.state) for step in steps] == [
        (f"s{number}", "done") for number in range(5)
    ]
    assert [step.result is not None for step in steps] == [True, True, True, False, False]
    assert [step.omitted > 20_000 for step in steps] == [False, False, False, True, True]


@pytest.mark.parametrize("end", ["completed", "dead", "died"])
def test_the_deliveries_of_a_run_are_numbered_and_summed(server: Server, end: str) -> None:
    """Suspended and failed deliveries count too. Attempts begin again at 1 after each record.
    Sleeps do not count."""
    with server.queue("q", history=10, max_attempts=2) as queue:

        def leased_again() -> Any:
            lease = None

            def there() -> bool:
                nonlocal lease
                lease = queue.lease()
                return lease is not None

            until(there, "the next delivery")
            return lease

        queue.enqueue(b"x", id="i")
        lease = leased_again()
        time.sleep(0.05)  # a handler that works for so long, and fails before its first step
        assert lease.retry(reason="no step")
        lease = leased_again()
        lease.job.step("a", time.sleep, 0.05)
        with pytest.raises(RunSuspended):
            lease.job.sleep("nap", 0.3)
        lease = leased_again()
        lease.job.sleep("nap", 0.3)
        assert lease.retry(reason="once more")
        lease = leased_again()
        lease.job.step("b", time.sleep, 0.05)
        with pytest.raises(RunSuspended):
            lease.job.wait_for("go")
        assert queue.signal("i", "go", by="ada") == "woke"
        lease = leased_again()
        if end == "completed":
            assert lease.complete()
        elif end == "dead":
            assert lease.dead_letter("enough")
        else:
            assert lease.retry(reason="first")
            assert leased_again().retry(reason="last")
        found = queue.find("i")
        (listed,) = [*(queue.admin.ended() if end == "completed" else queue.admin.dead())]
        numbers = [1, 2, 3, 4, 5, *([6] if end == "died" else [])]
        assert [one.number for one in found.attempts] == numbers
        assert [one.number for one in found.attempts if one.suspended] == [2, 4]
        assert found.deliveries == numbers[-1]
        for state in (found, listed):
            assert state.job.id == "i"
            assert 0.14 <= state.took <= 0.14 + sum(one.took for one in found.attempts) - 0.1
            assert state.took < found.since - found.enqueued_at - 0.2  # the nap is not in it
        if end != "completed":
            assert queue.admin.purge_dead() == 1
            kept = queue.find("i")
            assert [step.name for step in kept.steps] == [step.name for step in found.steps]
            assert [one.number for one in kept.attempts] == numbers
            assert kept.took == found.took


def test_a_signal_says_who_sent_it_and_when(server: Server) -> None:
    """The record includes a signal that came before its wait. It lasts after the end of the run."""
    with server.queue("q", history=10) as queue:
        lease = leased(queue, id="i")
        before = time.time()
        assert queue.signal("i", "early", by="ada") == "kept"
        (kept,) = queue.find("i").steps
        assert (kept.state, kept.by) == ("kept", "ada")
        lease.job.wait_for("early")
        with pytest.raises(RunSuspended):
            lease.job.wait_for("late")
        assert queue.signal("i", "late") == "woke"
        lease = queue.lease()
        steps = {step.name: step for step in queue.find("i").steps}
        assert lease.complete()
        assert {step.name: step for step in queue.find("i").steps} == steps
        early = steps["early"]
        late = steps["late"]
        assert (early.by, late.by) == ("ada", f"{socket.gethostname()}:{os.getpid()}")
        assert early.sent == kept.sent <= early.began
        assert late.sent == late.ended >= late.began
        assert abs(early.sent - before) < PATIENCE
        for wrong in ("", "x" * 201, 3):
            with pytest.raises((ValueError, TypeError), match="by"):
                queue.signal("i", "go", by=wrong)


@pytest.mark.parametrize("way", ["cancel_payload", "purge"])
def test_a_run_that_is_removed_keeps_what_it_did(server: Server, way: str) -> None:
    with server.queue("q", history=10) as queue:
        lease = leased(queue, id="i")
        lease.job.step("a", lambda: "kept")
        assert lease.release()
        assert (
            queue.admin.cancel_payload(b"x") if way == "cancel_payload" else queue.admin.purge()
        ) == 1
        state = queue.find("i")
        assert state.state == ("cancelled" if way == "cancel_payload" else "deleted")
        assert [(step.name, step.result) for step in state.steps] == [("a", "kept")]
