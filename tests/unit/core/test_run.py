"""Runs, driven by hand without a server or a clock. The tests check the calls of steps, and the
effects of the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import define, field

from headrace._codecs.recorded import Recorded
from headrace._core.effects import HeldJob, Send, Sleep
from headrace._core.steps.run import TURNS, Callbacks, Run, refuse_steps
from headrace._model.checks import LAST_MOMENT_S
from headrace._model.job import Claim, Job
from headrace._model.steps import Record, fraction_of, moment, step_name
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops
from headrace.errors import ConfigurationError, InDoubt, RunLost, RunSuspended
from tests.support.facts import each

OPS = Ops(Keys.of("q"))
NOW = 1000.0  # seconds, when the job was leased
DONE = [b"pay", b"step", 5, 6, 1, b"j3", 0]
BEGUN = [b"ship", b"once", 5, 0, 1, None, 0]
SLEPT = [b"night", b"sleep", 5, 0, 1, None, 999_000]
SLEEPS = [b"week", b"sleep", 5, 0, 1, None, 2_000_000]
SIGNALLED = [b"ok", b"wait", 5, 6, 1, b"j{}", 0]
TIMED_OUT = [b"late", b"wait", 5, 0, 1, None, 999_000]
KEPT = [b"later", b"signal", 5, 0, 0, b"j1", 0]
ROWS = [DONE, BEGUN, SLEPT, SLEEPS, SIGNALLED, TIMED_OUT, KEPT]


@define(eq=False)
class Stage:
    """A run whose calls are answered by hand, with the replies of scripts."""

    token: int = 1
    handled: bool = False
    meanwhile: Callable[[], object] = lambda: None  # done with each turn that a call waits
    slept: list[float] = field(factory=list)
    sent: list[tuple[str, Sequence[Any]]] = field(factory=list)
    notes: list[tuple[Any, ...]] = field(factory=list)
    departed: list[Claim] = field(factory=list)
    run: Run = field(init=False)

    def __attrs_post_init__(self) -> None:
        claim = HeldJob if self.handled else Claim
        held = claim(Job("i", b"x", "q"), "w", "5-0", 1, self.token, leased_at=NOW, named=True)
        note = self.notes.append
        values = Recorded(OPS.bound)
        callbacks = Callbacks(self.departed.append, lambda *it: note(it))
        self.run = Run(OPS, values, held, callbacks, handled=self.handled)

    def __call__(self, call: Generator[Any, Any, Any], *replies: Any) -> Any:
        """Drive a call to its end. Each of its operations gets one of *replies*."""
        left, answers = list(replies), None
        while True:
            try:
                effect = call.send(answers)
            except StopIteration as done:
                assert left == []
                return done.value
            if isinstance(effect, Sleep):
                answers = None
                self.slept.append(effect.seconds)
                self.meanwhile()
                continue
            assert isinstance(effect, Send)
            self.sent += [(op.name, op.args) for op in effect.ops]
            answers = [op.decode(left.pop(0)) for op in effect.ops]


def test_a_first_delivery_reads_nothing() -> None:
    stage = Stage()
    assert stage(stage.run.begin("pay", int, once=False)) == (False, None)
    assert stage(stage.run.end("pay", int, 3, 0.5), 1) == 3
    ((name, args),) = stage.sent
    assert name == "step"
    assert [*args] == ["w", "5-0", 1, 1, "", 0, "i", "0", 0, "pay", "step", 1, 1, 500, b"j3"]
    assert stage.notes == [("step_done", "pay")]


def test_a_later_delivery_reads_the_records_once() -> None:
    stage = Stage(2)
    assert stage(stage.run.begin("pay", int, once=False), ROWS) == (True, 3)
    assert stage(stage.run.begin("other", int, once=False)) == (False, None)
    assert [name for name, _ in stage.sent] == ["steps"]


def test_a_step_that_runs_once_records_its_beginning() -> None:
    stage = Stage()
    assert stage(stage.run.begin("ship", int, once=True), 4) == (False, None)
    assert stage(stage.run.end("ship", int, None, 0.0), 4) is None
    first, second = (args for _, args in stage.sent)
    assert (first[-6:-2], second[-6:-2]) == ([0, "ship", "once", 0], [4, "ship", "once", 1])


def test_a_step_that_began_is_in_doubt() -> None:
    stage = Stage(2)
    with pytest.raises(InDoubt):
        stage(stage.run.begin("ship", int, once=True), ROWS)


def test_sleeps_and_waits_that_are_over_send_nothing() -> None:
    stage = Stage(2)
    assert stage(stage.run.sleep("night", 60, release_key=False), ROWS) is None
    assert stage(stage.run.wait_for("ok", None, release_key=False)) == {}
    with pytest.raises(TimeoutError, match="no signal 'late' has come in time"):
        stage(stage.run.wait_for("late", 5, release_key=False))
    assert len(stage.sent) == 1


def test_a_run_that_was_woken_too_early_is_suspended_again() -> None:
    stage = Stage(2)
    with pytest.raises(RunSuspended) as end:
        stage(stage.run.sleep("week", 60, release_key=True), ROWS, [1, 2_000_000])
    assert (end.value.step, end.value.due) == ("week", 2000.0)
    assert stage.sent[1] == ("suspend", ["w", "5-0", 1, 2, "i", "0", 1, 0, "@1000000", 4])
    assert stage.departed == [stage.run.claim]
    with pytest.raises(RunLost):
        stage(stage.run.begin("pay", int, once=False))


@each(("reply", "value"), [([2, 1, b"j7"], 7), ([2, 1, None], None)])
def test_a_signal_that_is_there_suspends_nothing(reply: Any, value: Any) -> None:
    stage = Stage()
    assert stage(stage.run.wait_for("ok", None, release_key=False), reply) == value
    assert stage.departed == []


def test_a_time_that_has_passed_suspends_nothing() -> None:
    stage = Stage()
    assert stage(stage.run.sleep("past", 0, release_key=False), [3, 1]) is None
    with pytest.raises(TimeoutError):
        stage(stage.run.wait_for("never", 0, release_key=False), [3, 2])


@each("take", ["step", "sleep"])
def test_a_lost_lease_ends_the_run(take: str) -> None:
    stage = Stage()
    call = (
        stage.run.end("pay", int, 3, 0.0)
        if take == "step"
        else stage.run.sleep("night", 5, release_key=False)
    )
    with pytest.raises(RunLost):
        stage(call, 0 if take == "step" else [0])
    assert stage.run.claim.job.lost
    assert stage.departed == [stage.run.claim]
    assert stage.run.over


@each(("reply", "words"), [(-1, "1,000 records"), (-2, "1,048,576 bytes")])
def test_a_run_has_bounds(reply: int, words: str) -> None:
    stage = Stage()
    with pytest.raises(ValueError, match=words):
        stage(stage.run.end("pay", int, 3, 0.0), reply)
    assert not stage.departed


def test_a_record_of_another_kind_is_refused() -> None:
    stage = Stage(2)
    with pytest.raises(
        ConfigurationError, match="'pay' was recorded as a step, and is a sleep now"
    ):
        stage(stage.run.sleep("pay", 5, release_key=False), ROWS)
    with pytest.raises(ConfigurationError, match="was recorded as a sleep, and is a step now"):
        stage(stage.run.begin("night", int, once=False))


@each("handled", [False, True])
def test_a_wait_stays_while_a_step_runs_beside_it(handled: bool) -> None:
    stage = Stage(handled=handled)
    assert stage(stage.run.begin("pay", int, once=False)) == (False, None)

    def pays() -> None:
        if len(stage.slept) == TURNS + 5:
            assert stage(stage.run.end("pay", int, 3, 0.5), 2) == 3

    stage.meanwhile = pays
    with pytest.raises(RunSuspended) as end:
        stage(
            stage.run.wait_for("ok", None, release_key=False),
            [1, 1, -1],
            *([] if handled else [[1, -1]]),
        )
    assert stage.slept[: TURNS + 1] == [*TURNS * [0.0], 0.001]
    assert len(stage.slept) == TURNS + 6
    if handled:
        assert stage.departed == []
        assert stage(stage.run.leave(end.value), [1, -1]) is end.value
    assert [name for name, _ in stage.sent] == ["wait", "step", "suspend"]
    assert stage.departed == [stage.run.claim]


def test_waits_side_by_side_suspend_the_run_together() -> None:
    stage = Stage(handled=True)
    for number, name in enumerate(["first", "second"], 1):
        with pytest.raises(RunSuspended):
            stage(stage.run.wait_for(name, None, release_key=number == 1), [1, number, -1])
    with pytest.raises(RunLost):
        stage(stage.run.begin("pay", int, once=False))
    error = BaseExceptionGroup("of a task group", [RunSuspended("i", "first"), RunLost("i")])
    assert stage(stage.run.leave(error), [1, -1]) is error
    assert stage.sent[-1] == ("suspend", ["w", "5-0", 1, 1, "i", "0", 0, 0, "@1000000", 1, 2])
    with pytest.raises(RunLost):
        stage(stage.run.wait_for("third", None, release_key=False))


def test_a_failure_beside_a_wait_counts() -> None:
    stage = Stage(handled=True)
    with pytest.raises(RunSuspended):
        stage(stage.run.wait_for("ok", None, release_key=False), [1, 1, -1])
    error = ValueError("of another branch")
    assert stage(stage.run.leave(error)) is error
    assert stage.departed == []


@each("lost", ["before", "meanwhile", "after"])
def test_a_lease_that_is_lost_while_a_wait_stays(lost: str) -> None:
    stage = Stage(handled=True)
    stage(stage.run.begin("pay", int, once=False))
    stage.meanwhile = (
        stage.run.claim.job.lost.set if lost == "meanwhile" else lambda: stage.run.failed("pay")
    )
    replies = [[0]] if lost == "before" else [[1, 1, -1]]
    with pytest.raises(RunSuspended if lost == "after" else RunLost) as end:
        stage(stage.run.wait_for("ok", None, release_key=False), *replies)
    if lost == "after":
        assert stage(stage.run.leave(end.value), [0]) is end.value
    assert stage.run.claim.job.lost
    assert (stage.departed == []) == (lost == "meanwhile")  # the worker knows
    assert [name for name, _ in stage.sent] == (
        ["wait", "suspend"] if lost == "after" else ["wait"]
    )


def test_a_call_that_fails_does_not_end_the_run() -> None:
    stage = Stage(handled=True)
    with pytest.raises(RunSuspended) as end:
        stage(stage.run.wait_for("ok", None, release_key=False), [1, 1, -1])
    call = stage.run.leave(end.value)
    next(call)
    with pytest.raises(ConnectionError):
        call.throw(ConnectionError())
    assert stage.run.ended is None
    assert not stage.run.parting


def test_progress_is_noted_by_the_end() -> None:
    stage = Stage(handled=True)
    stage.run.progress = (1.0, "all")
    assert stage(stage.run.leave(None), 1) is None
    stage.run.progress = (0.5, "half")
    with pytest.raises(RunSuspended) as end:
        stage(stage.run.wait_for("ok", None, release_key=False), [1, 1, -1])
    stage(stage.run.leave(end.value), 1, [1, -1])
    assert [name for name, _ in stage.sent] == ["progress", "wait", "progress", "suspend"]


def test_progress_that_can_t_be_noted_is_no_failure() -> None:
    stage = Stage(handled=True)
    stage.run.progress = (1.0, "all")
    call = stage.run.leave(None)
    next(call)
    with pytest.raises(StopIteration) as done:
        call.throw(ConnectionError())
    assert done.value.value is None


def test_records_that_nobody_asked_for_are_noted() -> None:
    stage = Stage(2)
    stage(stage.run.begin("pay", int, once=False), [DONE, SLEPT])
    stage.run.close(completed=False)
    assert stage.notes == []
    stage.run.close(completed=True)
    assert stage.notes == [("steps_unused", "night")]


def test_names_and_functions_are_checked() -> None:
    stage = Stage()
    with pytest.raises(TypeError, match="give a function"):
        stage(stage.run.begin("pay", 5, once=False))
    with pytest.raises(ConfigurationError, match="number those of a loop"):
        stage(stage.run.begin("pay", int, once=False))
    stage.run.failed("pay")
    assert stage(stage.run.begin("pay", int, once=False)) == (False, None)
    with pytest.raises(TypeError, match="not None"):
        stage(stage.run.sleep("night", None, release_key=False))
    with pytest.raises(ConfigurationError, match="at_most_once"):
        refuse_steps(stage.run.claim.job)


WRONG: list[tuple[type[Exception], Callable[[], object]]] = [
    (TypeError, lambda: step_name(5)),
    (ValueError, lambda: step_name("")),
    (ValueError, lambda: step_name("\ud800")),
    (ValueError, lambda: moment("duration", -1, NOW)),
    (ValueError, lambda: moment("duration", float("nan"), NOW)),
    (ValueError, lambda: moment("duration", LAST_MOMENT_S, NOW)),
    (ValueError, lambda: moment("duration", datetime(2026, 1, 1), NOW)),  # noqa: DTZ001 - that is wrong
    (TypeError, lambda: moment("duration", "5", NOW)),
    (TypeError, lambda: fraction_of("5")),
    (ValueError, lambda: fraction_of(1.1)),
]


@each("number", range(len(WRONG)))
def test_values_are_checked(number: int) -> None:
    error, make = WRONG[number]
    with pytest.raises(error):
        make()


def test_moments() -> None:
    assert moment("timeout", None, NOW) == ""
    assert moment("timeout", timedelta(seconds=1.5), NOW) == "+1500"
    assert moment("timeout", LAST_MOMENT_S - NOW, NOW).startswith("+2534")
    assert moment("timeout", datetime.fromtimestamp(5, UTC), NOW) == "@5000"
    assert fraction_of(1) == 1.0


def test_records_are_shown_by_their_state() -> None:
    shown = [record.step(NOW, None) for record in step_ops.records(ROWS)]
    assert [(step.name, step.state, step.ended, step.due) for step in shown] == [
        ("pay", "done", 0.006, None),
        ("ship", "begun", None, None),
        ("night", "slept", 999.0, 999.0),
        ("week", "sleeping", None, 2000.0),
        ("ok", "signalled", 0.006, None),
        ("late", "timed out", 999.0, 999.0),
        ("later", "kept", None, None),
    ]
    assert Record(1, "ok", "wait", 5, 0, 1, None, 0).state(NOW) == "waiting"
