"""Runs that began under old code go on under new code.

Code is a list of lines here, each a step, a sleep or a wait. A worker with the old lines parks a
run, and ends. A worker with the new lines goes on with it. docs/how-to/deploy-on-a-friday.md says
no more than these tests show.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from attrs import define, field, frozen

from headrace import Queue, Retry
from headrace.testing import recorded, replay
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.servers import Server
from tests.support.steps import LONG

Line = tuple[Any, ...]
ONCE = Retry(attempts=1)
CHARGE = ("step", "charge", 3, int)
LABEL = ("step", "label", "box", str)
APPROVED = ("wait", "approved", None)
SHIP = ("step", "ship", "parcel", str)
OLD = [CHARGE, LABEL, APPROVED, SHIP]


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    with Queue("q", url=newest.url) as queue:
        yield queue


@define
class Shop:
    """Deploys code, and notes what it does."""

    work: Callable[..., Running]
    kind: str
    queue: Queue
    ran: list[tuple[str, str]] = field(factory=list[tuple[str, str]])
    """The steps whose functions ran, each after the id of its job."""
    attempts: list[int] = field(factory=list[int])

    def deployed(self, lines: list[Line], **options: Any) -> Running:
        """Return a worker with this code. Other jobs than runs have the payload `other`."""
        worker = self.work()

        @worker.handler("q", **{"retry": ONCE, **options})
        def handle(job: Any) -> Any:
            if job.payload == b"other":
                return None
            self.attempts.append(job.attempt)
            values: list[Any] = []
            for what, name, *more in lines:
                if what == "step":
                    function = self.function(job.id, name, *more[:2])
                    values.append((yield partial(job.step, name, function, **dict(more[2:]))))
                elif what == "sleep":
                    yield partial(job.sleep, name, more[0])
                elif what == "child":
                    values.append((yield partial(job.run, (more[0], b"x"), child=name)))
                else:
                    values.append((yield partial(job.wait_for, name, *more)))
            return repr(values)

        return worker

    def function(self, id: str, name: str, value: Any, hint: Any) -> Callable[[], Any]:
        """Return the function of a step, annotated with a type."""

        def run() -> Any:
            self.ran.append((id, name))
            return value

        async def run_async() -> Any:
            return run()

        function: Any = run_async if self.kind == "tasks" else run
        function.__annotations__ = {"return": hint}
        return function  # type: ignore[no-any-return]

    def parked(self, lines: list[Line] = OLD, id: str = "a") -> None:
        """Run old code until it has come to its sleep or wait."""
        self.queue.enqueue(b"x", id=id)
        with self.deployed(lines):
            until(lambda: (counts := self.queue.counts()).blocked + counts.delayed == 1)
        self.ran.clear()
        self.attempts.clear()

    def steps(self) -> list[str]:
        return [name for _, name in self.ran]

    def done(self, lines: list[Line], **options: Any) -> str:
        """Let the run go on under this code, and return its result."""
        with self.deployed(lines, **options):
            result = self.queue.result("a", timeout=60)
        assert result is not None
        return result.decode()

    def still_parked(self, lines: list[Line], **options: Any) -> Any:
        """Run other jobs under this code, and return the state of the run, which does not go on."""
        with self.deployed(lines, **options):
            assert self.queue.enqueue(b"other").result(timeout=60) is None
        assert self.ran == []
        return self.queue.find("a")


@pytest.fixture
def shop(work: Callable[..., Running], kind: str, queue: Queue) -> Shop:
    return Shop(work, kind, queue)


def unused(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the records that nobody asked for, by the log."""
    return [
        vars(record)["step"]
        for record in caplog.records
        if vars(record).get("event") == "steps_unused"
    ]


ANSWER = "[3, 'box', None, 'parcel']"
# the new code; the steps that run now; the records that are unused; the result
GOES_ON: dict[str, tuple[list[Line], list[str], list[str], str]] = {
    "nothing": (OLD, ["ship"], [], ANSWER),
    "a step renamed": (
        [("step", "payment", 4, int), LABEL, APPROVED, SHIP],
        ["payment", "ship"],
        ["charge"],
        "[4, 'box', None, 'parcel']",
    ),
    "a step removed": (
        [CHARGE, APPROVED, SHIP],
        ["ship"],
        ["label"],
        "[3, None, 'parcel']",
    ),
    "a step added in front": (
        [("step", "audit", "ok", str), *OLD],
        ["audit", "ship"],
        [],
        "['ok', 3, 'box', None, 'parcel']",
    ),
    "a step added behind": (
        [*OLD, ("step", "thank", "ok", str)],
        ["ship", "thank"],
        [],
        "[3, 'box', None, 'parcel', 'ok']",
    ),
    "steps in another order": (
        [LABEL, APPROVED, SHIP, CHARGE],
        ["ship"],
        [],
        "['box', None, 'parcel', 3]",
    ),
    "a step behind the wait removed": (OLD[:3], [], [], "[3, 'box', None]"),
    "another function of the same name": (
        [("step", "charge", 99, int), *OLD[1:]],
        ["ship"],
        [],
        ANSWER,
    ),
    "a type that reads the old value": (
        [("step", "charge", 3, int | None), *OLD[1:]],
        ["ship"],
        [],
        ANSWER,
    ),
    "no type any more": ([("step", "charge", 3, Any), *OLD[1:]], ["ship"], [], ANSWER),
    "a step that runs once": (
        [("step", "charge", 3, int, ("once", True)), *OLD[1:]],
        ["ship"],
        [],
        ANSWER,
    ),
    "a wait with a time-out": (
        [CHARGE, LABEL, ("wait", "approved", LONG), SHIP],
        ["ship"],
        [],
        ANSWER,
    ),
    "a wait removed": ([CHARGE, LABEL, SHIP], ["ship"], ["approved"], "[3, 'box', 'parcel']"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("change", GOES_ON)
def test_a_run_goes_on(change: str, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """It spends no attempt. The log names the records that nobody asked for."""
    lines, ran, left, answer = GOES_ON[change]
    shop.parked()
    assert shop.queue.signal("a", "approved") == "woke"
    with caplog.at_level(logging.WARNING, "headrace"):
        assert shop.done(lines) == answer
    assert shop.steps() == ran
    assert unused(caplog) == left
    assert shop.attempts == [1]
    assert shop.queue.counts().dead == 0


AS_STEP = ("step", "approved", "yes", str)
# the new code, and the reason of the dead letter
REFUSED: dict[str, tuple[list[Line], str]] = {
    "a step is a sleep": (
        [("sleep", "charge", 0), *OLD[1:]],
        "ConfigurationError: 'charge' was recorded as a step, and is a sleep now",
    ),
    "a step is a wait": (
        [("wait", "charge", None), *OLD[1:]],
        "ConfigurationError: 'charge' was recorded as a step, and is a wait now",
    ),
    "a wait is a sleep": (
        [CHARGE, LABEL, ("sleep", "approved", 0), SHIP],
        "ConfigurationError: 'approved' was recorded as a wait, and is a sleep now",
    ),
    "a wait is a step": (
        [CHARGE, LABEL, AS_STEP, SHIP],
        "ConfigurationError: 'approved' was recorded as a wait, and is a step now",
    ),
    "a type that does not read the old value": (
        [("step", "charge", ["a"], list[str]), *OLD[1:]],
        "CodecError: step 'charge': its recorded value does not decode",
    ),
    "a name that is taken twice": (
        [CHARGE, ("step", "charge", 4, int), *OLD[1:]],
        "ConfigurationError: step 'charge' was taken before in this run",
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("change", REFUSED)
def test_code_that_does_not_fit_fails_and_is_rolled_back(change: str, shop: Shop) -> None:
    """The dead letter says why. Redriven under the old code, the run goes on where it was."""
    lines, reason = REFUSED[change]
    shop.parked()
    assert shop.queue.signal("a", "approved") == "woke"
    with shop.deployed(lines):
        until(lambda: shop.queue.counts().dead == 1)
    letter = shop.queue.find("a")
    assert letter is not None
    assert str(letter.reason).startswith(reason)
    assert [step.name for step in letter.steps] == ["charge", "label", "approved"]
    assert shop.ran == []
    assert shop.queue.admin.redrive("a")
    assert shop.done(OLD) == ANSWER
    assert shop.steps() == ["ship"]


@pytest.mark.sampled
@pytest.mark.parametrize("change", [*GOES_ON, *REFUSED])
def test_a_replay_tells_before(change: str, shop: Shop) -> None:
    """Code that does not fit is refused before it is deployed, and no other."""
    lines, *_ = GOES_ON.get(change) or REFUSED[change]
    shop.parked()
    assert shop.queue.signal("a", "approved") == "woke"
    (line,) = recorded(shop.queue)
    found = replay(shop.deployed(lines).worker, line)
    assert found.fits == (change in GOES_ON)
    if not found.fits:
        assert found.reason.startswith(REFUSED[change][1])
    assert shop.ran == []


@frozen
class Charge:
    """The value of a step, as old code declares it."""

    id: str
    cents: int


@frozen
class WithDefault:
    id: str
    cents: int
    currency: str = "EUR"


@frozen
class WithoutDefault:
    id: str
    cents: int
    currency: str


@frozen
class WithLess:
    id: str


@pytest.mark.parametrize(
    ("new", "read"),
    [
        (WithDefault, "[WithDefault(id='c', cents=3, currency='EUR'), None]"),
        (WithoutDefault, "CodecError: step 'charge': its recorded value does not decode"),
        (WithLess, "CodecError: step 'charge': its recorded value does not decode"),
    ],
)
def test_fields_of_a_value(new: type, read: str, shop: Shop) -> None:
    """A field with a default may be added. No field may be removed."""
    shop.parked([("step", "charge", Charge("c", 3), Charge), APPROVED])
    assert shop.queue.signal("a", "approved") == "woke"
    lines = [("step", "charge", None, new), APPROVED]
    if read.startswith("["):
        assert shop.done(lines) == read
        return
    with shop.deployed(lines):
        until(lambda: shop.queue.counts().dead == 1)
    letter = shop.queue.find("a")
    assert letter is not None
    assert str(letter.reason).startswith(read)


def test_a_roll_back_before_the_last_attempt_needs_no_redrive(shop: Shop) -> None:
    lines, _ = REFUSED["a step is a sleep"]
    shop.parked()
    shop.queue.signal("a", "approved")
    patient = Retry(attempts=1000, wait=0.01)
    with shop.deployed(lines, retry=patient):
        until(lambda: len(shop.attempts) > 2)
    assert shop.done(OLD, retry=patient) == ANSWER
    assert shop.steps() == ["ship"]
    assert shop.attempts[:3] == [1, 2, 3]


def test_a_wait_that_was_renamed_still_waits_for_the_old_signal(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [CHARGE, LABEL, ("wait", "granted", None), SHIP]
    shop.parked()
    assert shop.queue.signal("a", "granted", "yes") == "kept"
    assert shop.still_parked(lines).state == "blocked"
    assert shop.queue.signal("a", "approved") == "woke"
    with caplog.at_level(logging.WARNING, "headrace"):
        assert shop.done(lines) == "[3, 'box', 'yes', 'parcel']"
    assert unused(caplog) == ["approved"]


def test_a_wait_that_was_removed_still_waits(shop: Shop) -> None:
    shop.parked()
    assert shop.still_parked([CHARGE, LABEL, SHIP]).state == "blocked"


def test_a_wait_in_front_parks_the_run_again(shop: Shop) -> None:
    lines = [("wait", "checked", None), *OLD]
    shop.parked()
    assert shop.queue.signal("a", "approved") == "woke"
    with shop.deployed(lines):
        until(lambda: shop.attempts and shop.queue.counts().blocked == 1)
    assert shop.queue.signal("a", "checked") == "woke"
    assert shop.done(lines) == "[None, 3, 'box', None, 'parcel']"
    assert shop.attempts == [1, 1]


@pytest.mark.parametrize("name", ["pack", "wrap"])
def test_a_child_that_runs_is_known_by_its_name(name: str, shop: Shop, newest: Server) -> None:
    """A renamed one is started beside it. Another queue for the same name changes nothing."""
    renamed = name == "wrap"
    with Queue("q/old", url=newest.url) as old, Queue("q/new", url=newest.url) as new:
        shop.parked([CHARGE, ("child", "pack", "q/old")])
        with shop.deployed([CHARGE, ("child", name, "q/new")]):
            assert old.complete(old.lease(), b"from old")  # type: ignore[arg-type]
            if renamed:
                until(lambda: new.counts().waiting == 1)
                assert new.complete(new.lease(), b"from new")  # type: ignore[arg-type]
            result = shop.queue.result("a", timeout=60)
        assert result == (b"[3, b'from new']" if renamed else b"[3, b'from old']")
        assert (shop.ran, shop.attempts) == ([], [1] * (1 + renamed))
        assert new.counts().enqueued == renamed


def test_the_moment_of_a_sleep_stays(shop: Shop) -> None:
    """It was fixed when the sleep began. A shorter sleep does not end it."""
    old = [CHARGE, ("sleep", "night", LONG), SHIP]
    shop.parked(old)
    before = shop.queue.find("a")
    after = shop.still_parked([CHARGE, ("sleep", "night", 0), SHIP])
    assert before is not None
    assert (after.state, after.steps) == ("delayed", before.steps)


def test_a_time_out_that_comes_later_ends_no_old_wait(shop: Shop) -> None:
    """A run that waits without a time-out waits on, until a signal comes."""
    shop.parked()
    lines = [CHARGE, LABEL, ("wait", "approved", 0), SHIP]
    assert shop.still_parked(lines).state == "blocked"


def test_a_roll_back_leaves_the_records_of_the_new_code_unused(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.parked()
    assert shop.queue.signal("a", "approved") == "woke"
    with shop.deployed([*OLD[:3], ("step", "audit", 1, int), ("wait", "checked", None), SHIP]):
        until(lambda: shop.ran and shop.queue.counts().blocked == 1)
    assert shop.queue.signal("a", "checked") == "woke"
    with caplog.at_level(logging.WARNING, "headrace"):
        assert shop.done(OLD) == ANSWER
    assert shop.steps() == ["audit", "ship"]
    assert unused(caplog) == ["audit", "checked"]


def test_old_and_new_code_beside_each_other(shop: Shop) -> None:
    """Either may go on with a run. What both call by the same name runs once in it."""
    ids = [f"r{number}" for number in range(20)]
    new = [CHARGE, ("step", "stamp", "box", str), *OLD[2:]]
    with shop.deployed(OLD), shop.deployed(new):
        for one in ids:
            shop.queue.enqueue(b"x", id=one)
        until(lambda: shop.queue.counts().blocked == len(ids))
        for one in ids:
            assert shop.queue.signal(one, "approved") == "woke"
        for one in ids:
            assert shop.queue.result(one, timeout=60) == ANSWER.encode()
    times = Counter(shop.ran)
    assert [times[one, name] for one in ids for name in ("charge", "ship")] == [1] * 40
    assert max(times.values()) == 1
    assert set(shop.attempts) == {1}
