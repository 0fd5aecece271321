"""Calls of several round trips, driven by hand without a server or a clock."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest

from headrace import QueueFull, Receipt
from headrace._core.effects import (
    AwaitEnds,
    AwaitRoom,
    Block,
    ForgetEnds,
    NoteDead,
    Now,
    Overlap,
    Send,
    Sleep,
    Undo,
    Undoable,
    WatchEnds,
)
from headrace._core.notices import Waiter
from headrace._core.queue import calls, results
from headrace._core.queue.conditional import admit
from headrace._core.queue.leasing import DirectLeaser
from headrace._core.queue.results import End
from headrace._model.event import Event
from headrace._model.job import Claim, Job
from headrace._model.settings import QueueSettings
from headrace._model.state import JobState
from headrace._protocol import admin_ops
from headrace._protocol.features.conditions import Admission, Refusal
from headrace._protocol.features.history import Ended
from headrace._protocol.features.schedules import DueSchedules
from headrace._protocol.keys import Keys
from headrace._protocol.limits import ATTEMPT_S, CLAIMS_PER_SCRIPT, JOBS_PER_SCRIPT, RECORD_S
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Died, Grant, Reclaimed, Verdicts
from headrace.errors import ReplyError
from tests.support.facts import each

OPS = Ops(Keys.of("q"))


def claims(count: int, worker: str = "w", start: int = 0) -> list[Claim]:
    return [
        Claim(Job(f"{i}-0", b"x", "q"), worker, f"{i}-0", 1, 1) for i in range(start, start + count)
    ]  # fmt: skip


class Stage:
    """Answers the effects of a call, and records its operations and waits."""

    def __init__(self, answer: Callable[[Op[Any]], Any]) -> None:
        self.answer, self.now = answer, 0.0
        self.sent: list[Op[Any]] = []
        self.waits: list[float] = []
        self.watched: list[str] = []
        self.told: list[tuple[dict[str, Event], bool]] = []
        self.commands: list[str] = []
        self.noted: list[tuple[str, Died]] = []

    @property
    def names(self) -> list[str]:
        """Return the names of the sent scripts."""
        return [op.name for op in self.sent]

    def play(self, call: Generator[Any, Any, Any]) -> Any:
        """Drive *call* to its end and return its value."""
        try:
            effect = next(call)
            while True:
                try:
                    answer = self._perform(effect)
                except Exception as error:
                    effect = call.throw(error)
                else:
                    effect = call.send(answer)
        except StopIteration as done:
            return done.value

    def _perform(self, effect: Any) -> Any:  # noqa: C901, PLR0911
        match effect:
            case NoteDead(died):
                self.noted += died
                return None
            case Now():
                self.now += 0.001
                return self.now
            case WatchEnds(names):
                self.watched += names
                return Waiter(frozenset(names), None)
            case AwaitEnds(_, seconds):
                self._passed(min(seconds, 1.0))
                return self.told.pop(0) if self.told else ({}, True)
            case ForgetEnds(waiter):
                self.watched = [name for name in self.watched if name not in waiter.ids]
                return None
            case Sleep(seconds):
                return self._passed(seconds)
            case AwaitRoom(_, seconds):
                return self._passed(seconds - 0.02)  # a blocked read may end early
            case Block(command):
                self.commands.append(str(command[0]))
                return self._passed(int(command[command.index("BLOCK") + 1]) / 1000)
            case Overlap(op, meanwhile):
                meanwhile()
                meanwhile()  # it may be asked for again
                return op.decode(self._sent(op))
            case Undoable():
                effect.answer = self._sent(effect.op)
                return effect.answer
            case Undo(ops):
                return [self._sent(op) for op in ops]
            case Send(ops):
                return [self._sent(op) for op in ops]
        raise AssertionError(effect)

    def _passed(self, seconds: float) -> bool:
        self.now += seconds
        self.waits.append(seconds)
        return False

    def _sent(self, op: Op[Any]) -> Any:
        self.sent.append(op)
        return self.answer(op)


def told(*names: str, kind: str = "completed") -> dict[str, Event]:
    return {name: Event(kind, "q", name, 7.0, None, "why") for name in names}


def leasing(grants: list[Any], **more: Any) -> tuple[Stage, DirectLeaser]:
    """Return a stage that answers `lease` with each of *grants*, then with nothing."""

    def answer(op: Op[Any]) -> Any:
        if op.name == "lease":
            grant = grants.pop(0) if grants else Grant([])
            if isinstance(grant, Exception):
                raise grant
            return grant
        return (
            more[op.name](op) if op.name in more else Reclaimed(0) if op.name == "reclaim" else None
        )

    return Stage(answer), DirectLeaser(OPS, "me")


# -- lease -----------------------------------------------------------------------------------------


def test_one_lease_is_one_call() -> None:
    stage, leaser = leasing([Grant(claims(1))])
    assert len(stage.play(leaser.lease(1, 5.0, None, False))) == 1
    assert stage.names == ["reclaim", "lease"]
    assert stage.waits == []


def test_a_call_that_was_not_answered_keeps_no_job() -> None:
    """The next call repeats the unanswered one, and sends the jobs that it was granted to the front
    with no attempt spent.
    """
    stage, leaser = leasing([late := ConnectionError("cut"), Grant(claims(2)), Grant(claims(1))])
    late.outcome = "unknown"  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError):
        stage.play(leaser.lease(2, 0.0, None, False))
    first = stage.sent[-1]
    assert len(stage.play(leaser.lease(1, 0.0, None, False))) == 1
    assert stage.names == ["reclaim", "lease", "lease", "release", "lease"]
    assert stage.sent[2] is first
    assert stage.sent[4] is not first
    assert leaser.unanswered == []


def test_one_so_late_that_it_might_run_anew_is_not_asked_again() -> None:
    stage, leaser = leasing([late := ConnectionError("cut"), Grant(claims(1))])
    late.outcome = "unknown"  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError):
        stage.play(leaser.lease(1, 0.0, None, False))
    stage.now += RECORD_S
    assert len(stage.play(leaser.lease(1, 0.0, None, False))) == 1
    assert stage.names[-2:] == ["reclaim", "lease"]


def test_a_wide_lease_goes_on_where_one_script_ends_for_its_bytes() -> None:
    three, two = Grant(claims(3), next_due=0.0), Grant(claims(2))
    stage, leaser = leasing([three, two, Grant(claims(1))])
    assert len(stage.play(leaser.lease(10, 5.0, None, False))) == 5
    assert stage.names == ["reclaim", "lease", "lease"]


def test_tidying_is_once_a_second_or_as_soon_as_it_is_asked_for() -> None:
    again: list[float | None] = [None, 0.025, None]
    stage, leaser = leasing(
        [Grant(claims(1)) for _ in range(6)], reclaim=lambda _: Reclaimed(0, again.pop(0))
    )
    for _ in range(3):
        stage.play(leaser.lease(1, 0.0, None, False))
    assert stage.names == ["reclaim", "lease", "lease", "lease"]
    stage.now += 1
    stage.play(leaser.lease(1, 0.0, None, False))
    assert stage.names[4:] == ["reclaim", "lease"]
    stage.now += 0.025
    for _ in range(2):
        stage.play(leaser.lease(1, 0.0, None, False))
    assert stage.names[6:] == ["reclaim", "lease", "lease"]


def test_nothing_to_lease() -> None:
    """Without `block` the call returns at once. With `block` it waits in steps of at most a
    second."""
    stage, leaser = leasing([])
    assert stage.play(leaser.lease(1, 0.0, None, False)) == []
    assert stage.waits == []
    assert stage.play(leaser.lease(1, 2.5, None, False)) == []
    assert 2.4 <= sum(stage.waits) <= 2.6
    assert max(stage.waits) <= 1.0
    leases = [op.args[-3] for op in stage.sent if op.name == "lease"]
    assert leases[:2] == [0, 0]
    assert set(leases[2:]) == {1}


def test_block_none_is_for_ever() -> None:
    stage, leaser = leasing([Grant([])] * 50 + [Grant(claims(1))])
    assert len(stage.play(leaser.lease(1, None, None, False))) == 1
    assert sum(stage.waits) > 49


def test_a_wait_ends_when_a_delayed_job_is_due() -> None:
    stage, leaser = leasing(
        [Grant([], next_due=0.25), Grant([], next_due=0.0001), Grant(claims(1))]
    )
    stage.play(leaser.lease(1, 5.0, None, False))
    assert stage.waits == pytest.approx(
        [0.149, 0.001], abs=1e-3
    )  # on the client at last: a server may end a blocked read 0.1 s late


def test_who_leases_puts_in_what_recurs() -> None:
    """A caller without a worker also runs the schedules. It waits for a schedule's tick and
    enqueues the job."""
    ticking = DueSchedules(2000, None, [("s", 2000, "every 500", "once")])
    more: dict[str, Any] = {"reclaim": lambda _: Reclaimed(0, next_tick=0.5)}
    more |= {"schedules": lambda _: ticking, "tick": lambda _: True}
    stage, leaser = leasing([Grant([]), Grant([]), Grant(claims(1))], **more)
    stage.play(leaser.lease(1, 5.0, None, False))
    assert stage.names == ["reclaim", "lease", "lease", "schedules", "tick", "lease"]
    assert stage.sent[4].args == ["s", "every 500", 2000, 2500, 2000]
    assert [round(seconds, 1) for seconds in stage.waits] == [0.4, 0.1]
    assert round(leaser.tick_at - stage.now, 1) == 0.5


def test_what_one_script_passes_is_no_reason_to_wait() -> None:
    """A script that only postpones or promotes jobs returns an empty grant. The caller asks again
    without a wait."""
    stage, leaser = leasing([Grant([], next_due=0.0), Grant([], next_due=0.0), Grant(claims(1))])
    assert len(stage.play(leaser.lease(1, 0.0, None, False))) == 1
    assert stage.waits == []


def test_a_paused_queue_is_not_read() -> None:
    """A paused queue delivers no job, so the call only waits for its wake stream."""
    stage, leaser = leasing([Grant([], next_due=0.5, paused=True), Grant(claims(1))])
    assert len(stage.play(leaser.lease(1, 5.0, None, False))) == 1
    assert stage.commands == ["XREAD"]


def test_more_than_one_script_hands_out() -> None:
    stage, leaser = leasing(
        [
            Grant(claims(CLAIMS_PER_SCRIPT)),
            Grant(claims(CLAIMS_PER_SCRIPT, start=CLAIMS_PER_SCRIPT)),
            Grant(claims(5, start=2 * CLAIMS_PER_SCRIPT)),
        ]
    )
    found = stage.play(leaser.lease(2 * CLAIMS_PER_SCRIPT + 100, 5.0, None, False))
    assert [claim.entry for claim in found] == [f"{i}-0" for i in range(2 * CLAIMS_PER_SCRIPT + 5)]
    assert [op.args[1] for op in stage.sent if op.name == "lease"] == [
        CLAIMS_PER_SCRIPT,
        CLAIMS_PER_SCRIPT,
        100,
    ]
    assert stage.waits == []


def test_no_more_than_asked_for() -> None:
    stage, leaser = leasing(
        [Grant(claims(CLAIMS_PER_SCRIPT)), Grant(claims(7, start=CLAIMS_PER_SCRIPT))]
    )
    assert (
        len(stage.play(leaser.lease(CLAIMS_PER_SCRIPT + 7, None, None, False)))
        == CLAIMS_PER_SCRIPT + 7
    )
    assert stage.names.count("lease") == 2


def test_what_does_not_decode_goes_to_the_dead_letters_and_stops_nobody() -> None:
    bad, good = claims(1), claims(1, start=1)
    stage, leaser = leasing(
        [Grant([], [(bad[0], "why")]), Grant(good)], dead_letter=lambda op: op.decode([1])
    )
    assert stage.play(leaser.lease(1, 0.0, None, False)) == good
    assert stage.names == ["reclaim", "lease", "dead_letter", "lease"]
    assert [(one.id, one.reason) for _, one in stage.noted] == [("0-0", "why")]
    assert stage.sent[2].args == ["w", 1000, "0-0", 1, "why"]


def test_at_most_once_completes_first_and_hands_out_what_it_won() -> None:
    stage, leaser = leasing([Grant(claims(3))], complete=lambda _: [True, False, True])
    found = stage.play(leaser.lease(3, 0.0, None, True))
    assert [claim.entry for claim in found] == ["0-0", "2-0"]
    assert stage.sent[2].args[0] == "w"  # fenced


def test_who_was_declared_dead_leases_under_another_name() -> None:
    stage, leaser = leasing([None, Grant(claims(2))])
    assert [claim.entry for claim in stage.play(leaser.lease(2, 0.0, None, False))] == [
        "0-0",
        "1-0",
    ]
    assert stage.names == ["reclaim", "lease", "lease"]
    names = [op.args[0] for op in stage.sent]
    assert names[:2] == ["me", "me"]
    assert names[2] == leaser.name != "me"


def test_what_it_had_been_granted_by_then_goes_to_the_front() -> None:
    more = Grant(claims(1), next_due=0.0)
    stage, leaser = leasing([more, None, Grant(claims(2, start=1))], release=lambda _: [True])
    assert [claim.entry for claim in stage.play(leaser.lease(2, 0.0, None, False))] == [
        "1-0",
        "2-0",
    ]
    assert stage.names == ["reclaim", "lease", "lease", "release", "lease"]


def test_it_does_not_go_on_for_ever_where_every_name_is_dead() -> None:
    stage, leaser = leasing([None] * 9)
    with pytest.raises(ReplyError, match="rejected three new registrations"):
        stage.play(leaser.lease(1, None, None, False))
    assert stage.names == ["reclaim", "lease", "lease", "lease"]


def test_it_counts_as_alive_for_longer_than_its_leases() -> None:
    leaser = DirectLeaser(OPS, "me")
    assert (leaser.ttl(None), leaser.ttl(5.0), leaser.ttl(600.0)) == (70.0, 70.0, 610.0)


def test_a_cancelled_lease_gives_back_what_it_was_granted() -> None:
    leaser = DirectLeaser(OPS, "me")
    undo = leaser.give_back([1, -1, [[b"5-0", [b"no", b"data"], 2, 0]], [b"6-0", b"\xff"], 0, 7])
    assert undo is not None
    assert (undo.name, undo.args) == ("release", ["me", 0, "6-0", 1, "5-0", 2])
    assert leaser.give_back([1, -1, [], [], 0, 7]) is None
    assert leaser.give_back([0, -1, [], [], 0, 7]) is None


@each(
    ("scripts", "once", "kept", "given_back"),
    [
        (["reclaim"], False, False, 0),
        (["reclaim", "lease"], False, False, 0),  # the executor sees to that
        (["reclaim", "lease"], False, True, CLAIMS_PER_SCRIPT + 1),
        (["reclaim", "lease", "dead_letter"], False, False, CLAIMS_PER_SCRIPT + 1),
        (["reclaim", "lease", "dead_letter", "lease"], False, False, CLAIMS_PER_SCRIPT),
        (["reclaim", "lease", "dead_letter", "lease"], False, True, 2 * CLAIMS_PER_SCRIPT),
        (
            ["reclaim", "lease", "dead_letter", "lease", "complete"],
            True,
            False,
            2 * CLAIMS_PER_SCRIPT,
        ),
    ],
)
@each("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_lease_gives_back_what_it_was_granted(
    scripts: list[str], once: bool, kept: bool, given_back: int, error: type[BaseException]
) -> None:
    """The call is interrupted at the last of *scripts*. With *kept*, the reply had already
    arrived."""
    stage, leaser = leasing(
        [
            Grant(claims(CLAIMS_PER_SCRIPT), [(claims(1, start=-1)[0], "why")]),
            Grant(claims(CLAIMS_PER_SCRIPT, start=CLAIMS_PER_SCRIPT)),
        ],
        dead_letter=lambda _: Verdicts([True]),
    )
    call = leaser.lease(2 * CLAIMS_PER_SCRIPT, None, None, once)
    effect = next(call)
    while True:
        ops = (
            [effect.op]
            if isinstance(effect, Undoable)
            else effect.ops
            if isinstance(effect, Send)
            else []
        )
        if ops and [*stage.names, *(op.name for op in ops)] == scripts:
            break
        effect = call.send(stage._perform(effect))
    if kept:
        stage._perform(effect)
    ops = []
    if given_back:
        undo: Any = call.throw(error())
        assert isinstance(undo, Undo)
        ops += undo.ops
    with pytest.raises(error):
        call.send(None) if given_back else call.throw(error())
    assert {op.name for op in ops} <= {"release"}
    entries = [entry for op in ops for entry in op.args[2::2]]
    assert len(set(entries)) == len(entries) == given_back
    assert max((len(op.args) for op in ops), default=0) <= 2 + 2 * CLAIMS_PER_SCRIPT


# -- enqueue_many ----------------------------------------------------------------------------------


def _receive(op: Op[Any]) -> list[bytes]:
    return [b"1-0"] * (len(op.args) - 1)


@each("count", [0, 1, JOBS_PER_SCRIPT, 2 * JOBS_PER_SCRIPT + 1])
def test_a_receipt_for_every_job(count: int) -> None:
    stage = Stage(_receive)
    assert stage.play(calls.enqueue_many(OPS, [b"x"] * count)) == [Receipt("1-0", True)] * count
    assert len(stage.sent) == -(-count // JOBS_PER_SCRIPT)


@each("bad", [0, 1, 2])
def test_an_error_carries_the_receipts_of_what_is_in(bad: int) -> None:
    answers = iter([None] * bad)

    def answer(op: Op[Any]) -> Any:
        try:
            next(answers)
        except StopIteration:
            raise ConnectionError("gone") from None
        return _receive(op)

    with pytest.raises(ConnectionError, match="gone") as raised:
        Stage(answer).play(calls.enqueue_many(OPS, [b"x"] * (3 * JOBS_PER_SCRIPT)))
    assert raised.value.receipts == [Receipt("1-0", True)] * (bad * JOBS_PER_SCRIPT)  # type: ignore[attr-defined]
    note = f"headrace: {bad * JOBS_PER_SCRIPT} jobs of this enqueue_many are in the queue: error.receipts"
    assert raised.value.__notes__ == [note]


def test_a_bad_job_sends_nothing() -> None:
    stage = Stage(_receive)
    with pytest.raises(TypeError, match="payload"):
        stage.play(calls.enqueue_many(OPS, [b"x"] * JOBS_PER_SCRIPT + [5]))
    assert stage.sent == []


# -- the others ------------------------------------------------------------------------------------


def test_settlements_go_by_worker_and_batch_in_order() -> None:
    given = [*claims(CLAIMS_PER_SCRIPT + 2), *claims(3, "v", 5000), *claims(1, "w", 6000)]
    stage = Stage(lambda op: [True] * int(op.args[1]))
    assert stage.play(calls.each(OPS.complete, given)) == [True] * len(given)
    assert [op.args[1] for op in stage.sent] == [CLAIMS_PER_SCRIPT, 2, 3, 1]
    assert [entry for op in stage.sent for entry in op.args[5:]] == [claim.entry for claim in given]
    assert Stage(lambda op: []).play(calls.each(OPS.complete, [])) == []


def test_cancel_payload_goes_through_the_stream_and_then_what_is_delayed() -> None:
    pages = [(2, "jobs", "(5-0"), (1, "delayed", "0"), (3, "delayed", "7"), (0, "", "0")]
    answers = iter([(admin_ops.Cancelled(one, []), *where) for one, *where in pages])
    stage = Stage(lambda _: next(answers))
    assert stage.play(calls.cancel_payload(OPS, b"x", cascade=True)) == 6
    assert [op.args[1:3] for op in stage.sent] == [
        ["jobs", "-"], ["jobs", "(5-0"], ["delayed", "0"], ["delayed", "7"],
    ]  # fmt: skip


def test_purge_goes_on_to_its_end() -> None:
    answers = iter([(500, "delayed 7"), (0, "jobs 9-0"), (20, "")])
    stage = Stage(lambda _: next(answers))
    assert stage.play(calls.purge(OPS)) == 520
    assert [op.args[0] for op in stage.sent] == ["-", "delayed 7", "jobs 9-0"]


def test_dead_letters_are_paged_through() -> None:
    answers = iter([(500, "(5-0"), (0, "(9-0"), (3, "")])
    stage = Stage(lambda _: next(answers))
    assert stage.play(calls.through(partial(admin_ops.redrive, OPS), ["i"])) == 503
    sent = [[op.args[0], *op.args[2:]] for op in stage.sent]
    assert sent == [["-", "", b"", "i"], ["(5-0", "", b"", "i"], ["(9-0", "", b"", "i"]]


THERE, GONE, PERHAPS_DEAD = Ended("there"), Ended("gone"), Ended("gone, or dead")


def ending(found: list[Ended], **answers: Any) -> Stage:
    """Return a stage that answers `ended` with each of *found* in turn, and repeats the last one.
    It has no results."""
    more = {"result": [None], "find": (None, "")} | answers

    def answer(op: Op[Any]) -> Any:
        if op.name == "ended":
            return [found.pop(0) if len(found) > 1 else found[0]]
        return more[op.name]

    return Stage(answer)


def test_a_result_is_asked_for_once_or_waited_for() -> None:
    answers: list[Any] = [[None], [THERE], [None], [THERE], [b"r"]]
    stage = Stage(lambda _: answers.pop(0))
    with pytest.raises(TimeoutError, match="job 'i' has not ended; it goes on"):
        stage.play(results.end_of(OPS, "i", 0.0, own=False))
    assert (stage.waits, stage.names, stage.watched) == ([], ["result", "ended"], [])
    answers[:0] = [[None], [THERE]]
    assert stage.play(results.end_of(OPS, "i", 5.0, own=False)) == End("completed", b"r")
    # before and after it is watched, and when it was time to
    assert (len(stage.waits), stage.names) == (1, ["result", "ended"] * 3 + ["result"])
    assert stage.watched == []
    late = ending([THERE])
    with pytest.raises(TimeoutError):
        late.play(results.end_of(OPS, "i", 0.3, own=False))
    assert late.now < 1
    assert late.watched == []


@each("own", [False, True])
def test_an_id_of_which_nothing_is_known_may_come_unless_it_was_enqueued(own: bool) -> None:
    stage = ending([PERHAPS_DEAD])
    assert stage.play(results.end_of(OPS, "7-1", 0.3, own=own)) is results.UNKNOWN
    assert bool(stage.waits) is not own
    assert stage.watched == []


@each("kind", ["completed", "cancelled", "deleted"])
def test_what_is_told_of_a_job_that_is_gone_is_how_it_ended(kind: str) -> None:
    stage = ending([THERE, THERE, PERHAPS_DEAD])
    stage.told = [(told("i", kind=kind), False)]
    assert stage.play(results.end_of(OPS, "i", 5.0, own=False)) == End(kind)
    assert "find" not in stage.names


@each(("gone", "reason"), [(PERHAPS_DEAD, "all of it"), (GONE, "why")], ids=["letter", "no letter"])
def test_a_dead_letter_tells_more_than_what_is_told(gone: Ended, reason: str) -> None:
    letter = JobState(Job("i", b"x", "q"), "dead", reason="all of it")
    stage = ending([THERE, THERE, gone], find=(letter, ""))
    stage.told = [(told("i", kind="dead"), False)]
    assert stage.play(results.end_of(OPS, "i", 5.0, own=False)) == End("dead", None, reason)


def test_a_result_that_comes_while_it_is_asked_for_is_not_missed() -> None:
    kept = [[None], [b"r"]]
    stage = Stage(lambda op: [GONE] if op.name == "ended" else kept.pop(0))
    assert stage.play(results.end_of(OPS, "i", 0.0, own=False)) == End("completed", b"r")


def test_what_an_earlier_job_of_the_id_left_does_not_count() -> None:
    """The job was enqueued again, so the message and the result of the earlier job are ignored."""
    stage = ending([THERE, THERE, THERE, GONE], result=[b"new"])
    stage.told = [(told("i"), False)]
    assert stage.play(results.end_of(OPS, "i", 5.0, own=True)) == End("completed", b"new")
    assert stage.names == ["ended"] * 4 + ["result"]


RECORDED = [
    (Ended("completed"), [b"of another"], End("completed")),
    (Ended("completed", True), [b"r"], End("completed", b"r")),
    (Ended("completed", True), [None], results.EXPIRED),
    (Ended("cancelled"), [b"of another"], End("cancelled")),
    (Ended("dead", False, "why"), [None], End("dead", None, "why")),
    (Ended("gone"), [None], results.UNKNOWN),
]


@each(("recorded", "kept", "end"), RECORDED)
def test_a_history_tells_how_a_job_ended(
    recorded: Ended, kept: list[bytes | None], end: End
) -> None:
    stage = ending([recorded], result=kept)
    ops = Ops(Keys.of("q"), QueueSettings(history=10))
    assert stage.play(results.end_of(ops, "7-1", 0.0, own=True)) == end
    assert stage.names[0] == "ended"


def test_only_those_that_ended_are_asked_for_and_none_that_ended_is_waited_for() -> None:
    where = {"a": GONE, "b": THERE, "c": PERHAPS_DEAD, "d": THERE, "e": Ended("cancelled")}

    def answer(op: Op[Any]) -> Any:
        if op.name == "ended":
            return [where[str(name)] for name in op.items]
        if op.name == "find":
            return JobState(Job("c", b"x", "q"), "dead"), ""
        return [
            b"r" if name in ("b", "d") and len(stage.waits) > 1 + (name == "d") else None
            for name in op.items
        ]

    stage = Stage(answer)
    stage.told = [(told("a"), False), (told("b", "c", "d"), False), (told("d"), False)]
    assert stage.play(results.results(OPS, ["a", "b", "c", "d", "e", "a"], 10.0)) == {
        "b": b"r",
        "d": b"r",
    }
    every = ["a", "b", "c", "d"]
    asked = [list(op.items) for op in stage.sent if op.name == "result"]
    assert asked == [[*every, "e"], every, ["a"], ["a"], ["b", "c", "d"], ["c"], ["d"]]
    assert [list(op.items) for op in stage.sent if op.name == "ended"] == [
        [*every, "e"],
        ["a"],
        ["c", "d"],
    ]
    assert len(stage.waits) == 3  # and then all are known to have ended


def test_a_job_is_looked_for_page_by_page_and_once_more_among_the_newest() -> None:
    """It may have been redriven and died again meanwhile."""
    dead = JobState(Job("i", b"x", "q"), "dead")
    answers = [(None, "(7-0"), (None, "(3-0"), (None, ""), (dead, "")]
    stage = Stage(lambda _: answers.pop(0))
    assert stage.play(calls.find(OPS, "i")) is dead
    assert [op.args[1] for op in stage.sent] == ["", "(7-0", "(3-0", ""]
    once = Stage(lambda _: (None, ""))
    assert once.play(calls.find(OPS, "i")) is None
    assert len(once.sent) == 1


@each(
    ("answers", "position", "limits"),
    [
        ([(5, "")], 5, [1000]),
        ([(-1, "")], None, [1000]),
        ([(5, "(5-0"), (7, "(12-0"), (1, "")], 13, [1000, 995, 988]),
        ([(0, "-"), (3, "")], 3, [1000, 1000]),
        ([(5, "(5-0"), (-1, "")], None, [1000, 995]),
    ],
    ids=["in one call", "does not wait", "in three", "a large one first", "leased meanwhile"],
)
def test_a_position_is_counted_page_by_page(
    answers: list[tuple[int, str]], position: int | None, limits: list[int]
) -> None:
    left = [*answers]
    stage = Stage(lambda _: left.pop(0))
    assert stage.play(calls.position(OPS, "i")) == position
    assert [op.args[1] for op in stage.sent] == limits


def test_many_results_are_asked_for_in_parts() -> None:
    stage = Stage(lambda op: [b"r"] * len(op.items))
    names = [str(i) for i in range(2 * results.RESULTS_PER_SCRIPT + 1)]
    assert list(stage.play(results.results(OPS, names, None))) == names
    assert [len(op.items) for op in stage.sent] == [
        results.RESULTS_PER_SCRIPT,
        results.RESULTS_PER_SCRIPT,
        1,
    ]


def test_who_is_interrupted_is_watched_for_no_more() -> None:
    stage = ending([THERE])

    def interrupted(_seconds: float) -> bool:
        raise ConnectionError

    stage._passed = interrupted  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        stage.play(results.end_of(OPS, "i", 5.0, own=False))
    assert stage.watched == []


def test_an_enqueue_that_waits_for_room_asks_no_more_with_little_time_left() -> None:
    """An attempt whose answer may come too late is not made, because the caller could not say
    whether it was enqueued.
    """
    admission, stage = Admission(OPS), Stage(lambda _: [Refusal(True, 5, "0-0")])
    with pytest.raises(QueueFull):
        stage.play(admit(admission, [admission.item(b"x")], 0.2, together=False))
    assert len(stage.sent) == 1
    assert 0 < stage.waits[-1] < ATTEMPT_S
    assert sum(stage.waits) == pytest.approx(0.2, abs=0.01)
