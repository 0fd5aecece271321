"""Steps that are undone, under every kind of worker. Undos run in reverse order, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from headrace import Counts, DeadLetter, Queue, Retry, RetryLater
from headrace.codecs import Compressed, JSONCodec
from headrace.errors import ConfigurationError, InDoubt, StepFailed
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.servers import Server

Work = Callable[..., Running]
ONCE = Retry(attempts=1)
TWICE = Retry(attempts=2, wait=0)


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    with Queue("q", url=newest.url) as queue:
        yield queue


class Trip:
    """The steps of a journey, their undos, and what was called. `errors` are raised once each, or
    always if they stand in `always`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.calls: list[str] = []
        self.errors: dict[str, BaseException] = {}
        self.always: dict[str, BaseException] = {}

    def act(self, name: str) -> Callable[..., Any]:
        def run(*args: Any) -> str:
            self.calls.append(" ".join((name, *args)))
            error = self.errors.pop(name, None) or self.always.get(name)
            if error is not None:
                raise error
            return f"<{name}>"

        async def run_async(*args: Any) -> str:
            await asyncio.sleep(0)
            return run(*args)

        return run_async if self.kind == "tasks" else run

    def step(self, job: Any, name: str, **options: Any) -> Callable[[], Any]:
        return partial(job.step, name, self.act(name), undo=self.act(f"-{name}"), **options)


@pytest.fixture
def trip(kind: str) -> Trip:
    return Trip(kind)


def reason(queue: Queue) -> str:
    """Wait for the dead letter of the job `a`, and return its reason."""
    until(lambda: queue.counts().dead == 1, "a dead letter")
    state = queue.find("a")
    assert state is not None
    return str(state.reason)


def states(queue: Queue) -> list[tuple[str, str]]:
    state = queue.find("a")
    assert state is not None
    return [(one.name, one.state) for one in state.steps]


def registers(worker: Running, trip: Trip, retry: Retry) -> None:
    """Register a handler of three steps. The last one fails if `trip` says so."""

    @worker.handler("q", retry=retry)
    def handle(job: Any) -> Any:
        yield trip.step(job, "flight")
        yield partial(job.step, "note", trip.act("note"))
        yield trip.step(job, "hotel")
        yield trip.step(job, "car")
        yield trip.step(job, "bill")


def test_a_run_that_dies_is_undone(work: Work, queue: Queue, trip: Trip) -> None:
    """The undos come in reverse order, each with the value of its step, after the last attempt."""
    worker = work()
    registers(worker, trip, TWICE)
    trip.always["bill"] = ValueError("no money")
    queue.enqueue(b"x", id="a")
    with worker:
        assert reason(queue) == "ValueError: no money"
    forward = ["flight", "note", "hotel", "car", "bill", "bill"]
    undos = ["-car <car>", "-hotel <hotel>", "-flight <flight>"]
    assert trip.calls == forward + undos
    assert states(queue) == [
        ("flight", "undone"), ("note", "done"), ("hotel", "undone"), ("car", "undone"), ("", "dying"),
    ]  # fmt: skip
    state = queue.find("a")
    assert state is not None
    assert [one.result for one in state.steps] == [
        "<flight>", "<note>", "<hotel>", "<car>", "ValueError: no money",
    ]  # fmt: skip


def test_a_redriven_run_begins_again(work: Work, queue: Queue, trip: Trip) -> None:
    """Undone steps run again. Others stay recorded."""
    worker = work()
    registers(worker, trip, ONCE)
    trip.errors["bill"] = DeadLetter("no money")
    queue.enqueue(b"x", id="a")
    with worker:
        assert reason(queue) == "no money"
        trip.calls.clear()
        queue.admin.redrive("a")
        until(lambda: queue.counts() == Counts(enqueued=1, completed=1), "its end")
    assert trip.calls == ["flight", "hotel", "car", "bill"]


@pytest.mark.parametrize("verdict", [RetryLater(0), RuntimeError("try again"), None])
def test_a_run_that_goes_on_is_not_undone(
    work: Work, queue: Queue, trip: Trip, verdict: BaseException | None
) -> None:
    worker = work()
    registers(worker, trip, TWICE)
    if verdict is not None:
        trip.errors["bill"] = verdict
    queue.enqueue(b"x", id="a")
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=1, completed=1), "its end")
    assert [call for call in trip.calls if call.startswith("-")] == []


def test_a_verdict_that_is_returned_buries(work: Work, queue: Queue, trip: Trip) -> None:
    worker = work()

    @worker.handler("q")
    def handle(job: Any) -> Any:
        yield trip.step(job, "flight")
        return DeadLetter("enough")

    queue.enqueue(b"x", id="a")
    with worker:
        assert reason(queue) == "enough"
    assert trip.calls == ["flight", "-flight <flight>"]


def test_attempts_count_from_the_last_record(work: Work, queue: Queue, trip: Trip) -> None:
    """A delivery that records a step is the first of its attempts, and not the last."""
    worker = work()
    registers(worker, trip, TWICE)
    trip.errors |= {"flight": ValueError("1"), "hotel": ValueError("2"), "bill": ValueError("3")}
    queue.enqueue(b"x", id="a")
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=1, completed=1), "its end")
    assert [call for call in trip.calls if call.startswith("-")] == []


def test_an_undo_that_fails_is_tried_again(work: Work, queue: Queue, trip: Trip) -> None:
    """The undos have as many attempts as the handler. Those that have run do not run again."""
    worker = work()
    registers(worker, trip, TWICE)
    trip.always["bill"] = ValueError("no money")
    trip.errors |= {"-hotel": OSError("busy")}
    queue.enqueue(b"x", id="a")
    with worker:
        assert reason(queue) == "ValueError: no money"
    assert [call.split()[0] for call in trip.calls][-4:] == ["-car", "-hotel", "-hotel", "-flight"]
    assert trip.calls.count("bill") == 2


def test_an_undo_that_fails_at_last(work: Work, queue: Queue, trip: Trip) -> None:
    """The dead letter says what is left, and why the run died. A redrive goes on with the undos."""
    worker = work()
    registers(worker, trip, TWICE)
    trip.always |= {"bill": ValueError("no money"), "-hotel": OSError("busy")}
    queue.enqueue(b"x", id="a")
    with worker:
        assert reason(queue) == (
            "an undo failed: OSError: busy; the run died of: ValueError: no money; not undone: hotel, flight"
        )
        assert trip.calls[-3:] == ["-car <car>", "-hotel <hotel>", "-hotel <hotel>"]
        assert ("hotel", "undoable") in states(queue)
        trip.calls.clear()
        trip.always.clear()
        queue.admin.redrive("a")
        until(lambda: ("flight", "undone") in states(queue) and queue.counts().dead == 1)
        assert reason(queue) == "ValueError: no money"
        assert trip.calls == ["-hotel <hotel>", "-flight <flight>"]
        queue.admin.redrive("a")
        until(lambda: queue.counts() == Counts(enqueued=1, completed=1), "its end")


def undoes(worker: Running, trip: Trip, retry: Retry = TWICE) -> None:
    """Register a handler that undoes its run if the hotel is full, and goes on."""

    @worker.handler("q", retry=retry)
    def handle(job: Any) -> Any:
        yield trip.step(job, "flight")
        yield trip.step(job, "car")
        try:
            yield trip.step(job, "hotel")
        except Exception:
            yield job.undo
            yield trip.step(job, "mail")
        return "end"


def test_a_run_that_undoes_goes_on(work: Work, queue: Queue, trip: Trip) -> None:
    worker = work()
    undoes(worker, trip)
    trip.errors["hotel"] = ValueError("full")
    queue.enqueue(b"x", id="a")
    with worker:
        assert queue.result("a", timeout=60) == b"end"
    assert trip.calls == ["flight", "car", "hotel", "-car <car>", "-flight <flight>", "mail"]


def test_a_replay_behind_an_undo(work: Work, queue: Queue, trip: Trip) -> None:
    """Undone steps answer, and the step that had failed does not run again."""
    worker = work()
    undoes(worker, trip)
    trip.errors |= {"hotel": ValueError("full"), "mail": OSError("busy")}
    queue.enqueue(b"x", id="a")
    with worker:
        assert queue.result("a", timeout=60) == b"end"
    undos = ["-car <car>", "-flight <flight>"]
    assert trip.calls == ["flight", "car", "hotel", *undos, "mail", "mail"]


def test_an_undo_in_the_handler_fails(work: Work, queue: Queue, trip: Trip) -> None:
    """Its error leaves `job.undo()`. The next attempt goes on with the undos that are left."""
    worker = work()
    undoes(worker, trip)
    trip.errors |= {"hotel": ValueError("full"), "-flight": OSError("busy")}
    queue.enqueue(b"x", id="a")
    with worker:
        assert queue.result("a", timeout=60) == b"end"
    undos = ["-car <car>", "-flight <flight>", "-flight <flight>"]
    assert trip.calls == ["flight", "car", "hotel", *undos, "mail"]


def test_a_run_dies_behind_its_undo(work: Work, queue: Queue, trip: Trip) -> None:
    """What was recorded since is undone, too. A redriven run then begins with its first step."""
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        yield trip.step(job, "flight")
        if "again" not in trip.calls:
            yield job.undo
        yield trip.step(job, "mail")
        yield partial(job.step, "end", trip.act("end"))

    trip.errors["end"] = ValueError("no")
    queue.enqueue(b"x", id="a")
    with worker:
        assert reason(queue) == "ValueError: no"
        assert trip.calls == ["flight", "-flight <flight>", "mail", "end", "-mail <mail>"]
        trip.calls[:] = ["again"]
        queue.admin.redrive("a")
        until(lambda: queue.counts() == Counts(enqueued=1, completed=1), "its end")
    assert trip.calls == ["again", "flight", "mail", "end"]


def test_side_by_side(work: Work, kind: str, queue: Queue, trip: Trip) -> None:
    """A replay comes to all recorded steps, though one beside them has no record."""
    if kind != "tasks":
        pytest.skip("side by side in tasks")
    worker = work()

    async def handle(job: Any) -> None:
        await asyncio.gather(trip.step(job, "hotel")(), trip.step(job, "flight")())
        await asyncio.gather(
            trip.step(job, "bill")(), trip.step(job, "car")(), trip.step(job, "bus")()
        )

    worker.worker.handler("q", retry=TWICE)(handle)
    trip.always["bill"] = ValueError("no money")
    trip.errors |= {"-car": OSError("busy"), "-bus": OSError("busy")}
    queue.enqueue(b"x", id="a")
    with worker:
        assert reason(queue) == "ValueError: no money"
    undone = {call.split()[0] for call in trip.calls if call.startswith("-")}
    recorded = {name for name, state in states(queue) if state == "undone"}
    assert undone == {f"-{name}" for name in recorded} >= {"-hotel", "-flight"}


def test_a_step_that_failed_and_was_caught(work: Work, queue: Queue, trip: Trip) -> None:
    """A replay goes the same way round it, to the undos behind it."""
    worker = work()

    @worker.handler("q", retry=TWICE)
    def handle(job: Any) -> Any:
        with suppress(Exception):
            yield trip.step(job, "flight")
        yield trip.step(job, "train")
        yield trip.step(job, "bill")

    trip.always |= {"flight": ValueError("full"), "bill": ValueError("no money")}
    trip.errors["-train"] = OSError("busy")
    queue.enqueue(b"x", id="a")
    with worker:
        assert reason(queue) == "ValueError: no money"
    assert trip.calls[-2:] == ["-train <train>", "-train <train>"]


def test_a_step_in_doubt_is_not_undone(work: Work, queue: Queue, trip: Trip) -> None:
    """It has no value, and stays as it is."""
    worker = work()

    @worker.handler("q", retry=TWICE)
    def handle(job: Any) -> Any:
        yield trip.step(job, "flight", once=True)
        try:
            yield trip.step(job, "car", once=True)
        except InDoubt as error:
            raise DeadLetter("who knows") from error

    trip.errors["car"] = ValueError("cut off")
    queue.enqueue(b"x", id="a")
    with worker:
        assert reason(queue) == "who knows"
    assert trip.calls == ["flight", "car", "-flight <flight>"]
    assert states(queue) == [("flight", "undone"), ("car", "begun"), ("", "dying")]


def test_the_code_has_changed(work: Work, queue: Queue, trip: Trip) -> None:
    """A step that is to be undone, and that the handler does not take any more, is named."""
    worker = work()
    registers(worker, trip, ONCE)
    trip.errors |= {"bill": ValueError("no money"), "-car": OSError("busy")}
    queue.enqueue(b"x", id="a")
    with worker:
        assert "an undo failed: OSError: busy" in reason(queue)
    other = work()

    @other.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        yield trip.step(job, "flight")

    queue.admin.redrive("a")
    with other:
        until(lambda: "'car'" in reason(queue), "another reason")
        assert reason(queue) == (
            "an undo failed: NotReached: step 'car' is to be undone, and the handler has not come to it with undo=: "
            "its code has changed, or it failed before; the run died of: ValueError: no money; "
            "not undone: car, hotel, flight"
        )
    queue.admin.redrive("a")
    again = work()
    registers(again, trip, ONCE)
    with again:
        until(lambda: queue.counts().dead == 1 and reason(queue) == "ValueError: no money")
    assert trip.calls[-3:] == ["-car <car>", "-hotel <hotel>", "-flight <flight>"]


def test_the_code_does_not_undo_any_more(work: Work, queue: Queue, trip: Trip) -> None:
    """The run is no success: it dies, and what is left is undone."""
    worker = work()

    @worker.handler("q", retry=TWICE)
    def handle(job: Any) -> Any:
        yield trip.step(job, "flight")
        yield trip.step(job, "car")
        if job.attempt == 1 and "-car <car>" not in trip.calls:
            yield job.undo

    trip.errors["-flight"] = OSError("busy")
    queue.enqueue(b"x", id="a")
    with worker:
        assert reason(queue).startswith("ConfigurationError: job.undo() has begun to undo this run")
        assert states(queue)[0] == ("flight", "undone")
    assert trip.calls[-3:] == ["-car <car>", "-flight <flight>", "-flight <flight>"]


def test_undos_that_are_refused(work: Work, kind: str, queue: Queue, trip: Trip) -> None:
    """No step runs whose undo could not."""
    worker = work()
    raised: list[BaseException] = []

    async def later(_: object) -> None: ...

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        for undo in (5, later)[: 1 + (kind != "tasks")]:
            try:
                yield partial(job.step, f"{undo}", trip.act("a"), undo=undo)
            except TypeError as error:
                raised.append(error)

    queue.enqueue(b"x", id="a")
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=1, completed=1), "its end")
    words = ("can't be called", "is async")[: len(raised)]
    assert len(raised) == 1 + (kind != "tasks")
    assert all(word in str(error) for word, error in zip(words, raised, strict=True)), raised
    assert trip.calls == []


@pytest.mark.parametrize("inner", ["step", "sleep", "undo"])
def test_an_undo_takes_no_steps(
    work: Work, kind: str, queue: Queue, trip: Trip, inner: str
) -> None:
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        def call() -> Any:
            given = {"step": ("inner", trip.act("inner")), "sleep": ("inner", 0), "undo": ()}
            return getattr(job, inner)(*given[inner])

        def undo(_: object) -> None:
            call()

        async def undo_async(_: object) -> None:
            await call()

        yield partial(job.step, "a", trip.act("a"), undo=undo_async if kind == "tasks" else undo)
        yield job.undo

    queue.enqueue(b"x", id="a")
    with worker:
        assert "is taken in an undo" in reason(queue)
    assert trip.calls == ["a"]
    assert states(queue) == [("a", "undoable"), ("", "dying")]


def test_a_run_is_undone_once(work: Work, queue: Queue, trip: Trip) -> None:
    worker = work()
    raised: list[str] = []

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        yield job.undo
        yield trip.step(job, "flight")
        try:
            yield job.undo
        except ConfigurationError as error:
            raised.append(str(error))

    queue.enqueue(b"x", id="a")
    with worker:
        until(lambda: queue.counts() == Counts(enqueued=1, completed=1), "its end")
    assert len(raised) == 1
    assert "a run is undone once" in raised[0]
    assert trip.calls == ["flight"]


@pytest.mark.slow
def test_a_run_with_as_many_records_as_it_may(work: Work, queue: Queue, trip: Trip) -> None:
    """The undoing has room beside them."""
    worker = work()

    @worker.handler("q", retry=ONCE)
    def handle(job: Any) -> Any:
        yield trip.step(job, "flight")
        for number in range(1000):
            yield partial(job.step, f"s{number}", trip.act("s"))

    queue.enqueue(b"x", id="a")
    with worker:
        assert "a run has 1,000 records at most" in reason(queue)
    assert trip.calls[-1] == "-flight <flight>"


@pytest.mark.parametrize("codec", [Compressed(JSONCodec(list[int])), JSONCodec(list[int])])
def test_the_reason_passes_a_codec(
    work: Work, newest: Server, trip: Trip, codec: JSONCodec[Any]
) -> None:
    with Queue("q", url=newest.url, codec=codec) as queue:
        worker = work()
        handler: Any = worker.handler

        @handler(queue, retry=TWICE)
        def handle(job: Any) -> Any:
            yield trip.step(job, "flight")
            yield trip.step(job, "bill")

        trip.always["bill"] = ValueError("no money")
        trip.errors["-flight"] = OSError("busy")
        queue.enqueue([1], id="a")
        with worker:
            assert reason(queue) == "ValueError: no money"
        assert trip.calls[-2:] == ["-flight <flight>", "-flight <flight>"]


def test_a_wait_in_a_run_that_is_undone(work: Work, queue: Queue, trip: Trip) -> None:
    """Waits that are over are passed by the replay."""
    worker = work()

    @worker.handler("q", retry=TWICE)
    def handle(job: Any) -> Any:
        yield trip.step(job, "flight")
        yield partial(job.wait_for, "go")
        yield partial(job.sleep, "nap", 0.01)
        yield trip.step(job, "hotel")
        raise ValueError("no money")

    queue.enqueue(b"x", id="a")
    trip.errors["-flight"] = OSError("busy")
    with worker:
        queue.signal("a", "go")
        assert reason(queue) == "ValueError: no money"
    assert trip.calls[2:] == ["-hotel <hotel>", "-flight <flight>", "-flight <flight>"]


def test_step_failed_has_its_words() -> None:
    error = StepFailed("a", "hotel")
    assert (error.job, error.step) == ("a", "hotel")
    assert "does not run any more" in str(error)
