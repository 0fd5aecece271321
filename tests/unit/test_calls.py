"""Calls of several round trips, driven by hand: no server, no clock."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from headrace import Receipt, WorkerLost
from headrace import _calls as calls
from headrace._calls import Ahead, Clock, Nap, Peer, Wait, Whole
from headrace._job import Claim, Grant, Job, Reclaimed, Ticking
from headrace._keys import Keys
from headrace._op import Op
from headrace._ops import BATCH, Ops

OPS = Ops(Keys.of("q"))


def claims(count: int, worker: str = "w", start: int = 0) -> list[Claim]:
    return [
        Claim(Job(f"{i}-0", b"x", "q"), worker, f"{i}-0", 1, 1) for i in range(start, start + count)
    ]  # fmt: skip


class Stage:
    """Answers the effects of a call, and keeps what was asked."""

    def __init__(self, answer: Callable[[Op[Any]], Any]) -> None:
        self.answer, self.now = answer, 0.0
        self.sent: list[Op[Any]] = []
        self.waits: list[float] = []
        self.commands: list[str] = []

    @property
    def names(self) -> list[str]:
        """The scripts that were sent."""
        return [op.name for op in self.sent]

    def play(self, call: Generator[Any, Any, Any]) -> Any:
        """Drive *call* to its end: what it returns."""
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

    def _perform(self, effect: Any) -> Any:
        match effect:
            case Clock():
                self.now += 0.001
                return self.now
            case Nap(seconds):
                return self._passed(seconds)
            case Wait(command):
                self.commands.append(str(command[0]))
                return self._passed(int(command[command.index("BLOCK") + 1]) / 1000)
            case Ahead(op, meanwhile):
                meanwhile()
                meanwhile()  # it may be asked for again
                return op.decode(self._sent(op))
            case Whole(op):
                return self._sent(op)
        return self._sent(effect)

    def _passed(self, seconds: float) -> bool:
        self.now += seconds
        self.waits.append(seconds)
        return False

    def _sent(self, op: Op[Any]) -> Any:
        self.sent.append(op)
        return self.answer(op)


def leasing(grants: list[Any], **more: Any) -> tuple[Stage, Peer]:
    """A stage on which `lease` is answered by *grants* in turn, then by nothing."""

    def answer(op: Op[Any]) -> Any:
        if op.name == "lease":
            return grants.pop(0) if grants else Grant([])
        return more[op.name](op) if op.name in more else Reclaimed(0, "(9-0") if op.name == "reclaim" else None

    return Stage(answer), Peer(OPS, "me")


# -- lease ---------------------------------------------------------------------------------------------


def test_one_lease_is_one_call() -> None:
    stage, peer = leasing([Grant(claims(1))])
    assert len(stage.play(peer.lease(1, 5.0, None, False))) == 1
    assert stage.names == ["reclaim", "lease"]
    assert stage.waits == []


def test_tidying_is_once_a_second_and_goes_on_where_it_stopped() -> None:
    stage, peer = leasing([Grant(claims(1)) for _ in range(3)])
    for _ in range(3):
        stage.play(peer.lease(1, 0.0, None, False))
    assert stage.names == ["reclaim", "lease", "lease", "lease"]
    stage.now += 1
    stage.play(peer.lease(1, 0.0, None, False))
    assert stage.names[4:] == ["reclaim", "lease"]
    assert stage.sent[4].args[3] == "(9-0"


def test_nothing_to_lease() -> None:
    """Without `block` there is no waiting; with it, as long as that, a second at a time; woken reads say so."""
    stage, peer = leasing([])
    assert stage.play(peer.lease(1, 0.0, None, False)) == []
    assert stage.waits == []
    assert stage.play(peer.lease(1, 2.5, None, False)) == []
    assert 2.4 <= sum(stage.waits) <= 2.6
    assert max(stage.waits) <= 1.0
    leases = [op.args[-2] for op in stage.sent if op.name == "lease"]
    assert leases[:2] == [0, 0]
    assert set(leases[2:]) == {1}


def test_block_none_is_for_ever() -> None:
    stage, peer = leasing([Grant([])] * 50 + [Grant(claims(1))])
    assert len(stage.play(peer.lease(1, None, None, False))) == 1
    assert sum(stage.waits) > 49


def test_a_wait_ends_when_a_delayed_job_is_due() -> None:
    stage, peer = leasing([Grant([], next_due=0.25), Grant([], next_due=0.0001), Grant(claims(1))])
    stage.play(peer.lease(1, 5.0, None, False))
    assert stage.waits == [0.15, 0.001]  # on the client at last: a server may end a blocked read 0.1 s late


def test_who_leases_puts_in_what_recurs() -> None:
    """A plain queue is a peer: it is told of a schedule, waits for its tick, and takes it in."""
    ticking = Ticking(2000, None, [("s", 2000, "every 500", "once")])
    more: dict[str, Any] = {"reclaim": lambda _: Reclaimed(0, "-", next_tick=0.5)}
    more |= {"schedules": lambda _: ticking, "tick": lambda _: True}
    stage, peer = leasing([Grant([]), Grant([]), Grant(claims(1))], **more)
    stage.play(peer.lease(1, 5.0, None, False))
    assert stage.names == ["reclaim", "lease", "lease", "schedules", "tick", "lease"]
    assert stage.sent[4].args == ["s", "every 500", 2000, 2500, 2000]
    assert [round(seconds, 1) for seconds in stage.waits] == [0.4, 0.1]
    assert round(peer.tick - stage.now, 1) == 0.5


def test_what_one_script_passes_is_no_reason_to_wait() -> None:
    """It put off or promoted as many as it may, and handed out none: there may be others behind them."""
    stage, peer = leasing([Grant([], next_due=0.0), Grant([], next_due=0.0), Grant(claims(1))])
    assert len(stage.play(peer.lease(1, 0.0, None, False))) == 1
    assert stage.waits == []


def test_a_paused_queue_is_not_read() -> None:
    """Nothing may be delivered then: only the wake stream is waited for."""
    stage, peer = leasing([Grant([], next_due=0.5, paused=True), Grant(claims(1))])
    assert len(stage.play(peer.lease(1, 5.0, None, False))) == 1
    assert stage.commands == ["XREAD"]


def test_more_than_one_script_hands_out() -> None:
    stage, peer = leasing([Grant(claims(BATCH)), Grant(claims(BATCH, start=BATCH)), Grant(claims(5, start=2 * BATCH))])
    found = stage.play(peer.lease(2 * BATCH + 100, 5.0, None, False))
    assert [claim.entry for claim in found] == [f"{i}-0" for i in range(2 * BATCH + 5)]
    assert [op.args[1] for op in stage.sent if op.name == "lease"] == [BATCH, BATCH, 100]
    assert stage.waits == []


def test_no_more_than_asked_for() -> None:
    stage, peer = leasing([Grant(claims(BATCH)), Grant(claims(7, start=BATCH))])
    assert len(stage.play(peer.lease(BATCH + 7, None, None, False))) == BATCH + 7
    assert stage.names.count("lease") == 2


def test_what_does_not_decode_goes_to_the_dead_letters_and_stops_nobody() -> None:
    bad, good = claims(1), claims(1, start=1)
    stage, peer = leasing([Grant([], [(bad[0], "why")]), Grant(good)])
    assert stage.play(peer.lease(1, 0.0, None, False)) == good
    assert stage.names == ["reclaim", "lease", "dead_letter", "lease"]
    assert stage.sent[2].args == ["w", 1000, "0-0", 1, "why"]


def test_at_most_once_completes_first_and_hands_out_what_it_won() -> None:
    stage, peer = leasing([Grant(claims(3))], complete=lambda _: [True, False, True])
    found = stage.play(peer.lease(3, 0.0, None, True))
    assert [claim.entry for claim in found] == ["0-0", "2-0"]
    assert stage.sent[2].args[0] == "w"  # fenced


def test_who_was_declared_dead_hears_so() -> None:
    stage, peer = leasing([None])
    with pytest.raises(WorkerLost, match="me was declared dead; lease again"):
        stage.play(peer.lease(1, 0.0, None, False))


def test_it_counts_as_alive_for_longer_than_its_leases() -> None:
    peer = Peer(OPS, "me")
    assert (peer.ttl(None), peer.ttl(5.0), peer.ttl(600.0)) == (70.0, 70.0, 610.0)


def test_a_cancelled_lease_gives_back_what_it_was_granted() -> None:
    peer = Peer(OPS, "me")
    one, bad = claims(2)
    undo = peer.give_back(Grant([one], [(bad, "why")]))
    assert undo is not None
    assert (undo.name, undo.args) == ("release", ["w", "0-0", 1, "1-0", 1])
    assert peer.give_back(Grant([])) is None
    assert peer.give_back(None) is None


# -- enqueue_many --------------------------------------------------------------------------------------


def _receive(op: Op[Any]) -> list[bytes]:
    return [b"1-0"] * (len(op.args) - 1)


@pytest.mark.parametrize("count", [0, 1, BATCH, 2 * BATCH + 1])
def test_a_receipt_for_every_job(count: int) -> None:
    stage = Stage(_receive)
    assert stage.play(calls.enqueue_many(OPS, [b"x"] * count)) == [Receipt("1-0", True)] * count
    assert len(stage.sent) == -(-count // BATCH)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_error_carries_the_receipts_of_what_is_in(bad: int) -> None:
    answers = iter([None] * bad)

    def answer(op: Op[Any]) -> Any:
        try:
            next(answers)
        except StopIteration:
            raise ConnectionError("gone") from None
        return _receive(op)

    with pytest.raises(ConnectionError, match="gone") as raised:
        Stage(answer).play(calls.enqueue_many(OPS, [b"x"] * (3 * BATCH)))
    assert raised.value.receipts == [Receipt("1-0", True)] * (bad * BATCH)  # type: ignore[attr-defined]
    note = f"headrace: {bad * BATCH} jobs of this enqueue_many are in the queue: error.receipts"
    assert raised.value.__notes__ == [note]


def test_a_bad_job_sends_nothing() -> None:
    stage = Stage(_receive)
    with pytest.raises(TypeError, match="payload"):
        stage.play(calls.enqueue_many(OPS, [b"x"] * BATCH + [5]))
    assert stage.sent == []


# -- the others ----------------------------------------------------------------------------------------


def test_settlements_go_by_worker_and_batch_in_order() -> None:
    given = [*claims(BATCH + 2), *claims(3, "v", 5000), *claims(1, "w", 6000)]
    stage = Stage(lambda op: [True] * int(op.args[1]))
    assert stage.play(calls.each(OPS.complete, given)) == [True] * len(given)
    assert [op.args[1] for op in stage.sent] == [BATCH, 2, 3, 1]
    assert [entry for op in stage.sent for entry in op.args[5:]] == [claim.entry for claim in given]
    assert Stage(lambda op: []).play(calls.each(OPS.complete, [])) == []


def test_cancel_payload_goes_through_the_stream_and_then_what_is_delayed() -> None:
    answers = iter([(2, "jobs", "(5-0"), (1, "delayed", "0"), (3, "delayed", "7"), (0, "", "0")])
    stage = Stage(lambda _: next(answers))
    assert stage.play(calls.cancel_payload(OPS, b"x")) == 6
    assert [op.args[1:3] for op in stage.sent] == [
        ["jobs", "-"], ["jobs", "(5-0"], ["delayed", "0"], ["delayed", "7"],
    ]  # fmt: skip


def test_purge_goes_on_until_nothing_waits() -> None:
    answers = iter([500, 20, 0])
    assert Stage(lambda _: next(answers)).play(calls.purge(OPS)) == 520


def test_dead_letters_are_paged_through() -> None:
    answers = iter([(500, "(5-0"), (0, "(9-0"), (3, "")])
    stage = Stage(lambda _: next(answers))
    assert stage.play(calls.through(OPS.redrive, ["i"])) == 503
    assert [op.args for op in stage.sent] == [["-", 500, "i"], ["(5-0", 500, "i"], ["(9-0", 500, "i"]]


def test_a_result_is_asked_for_once_or_waited_for() -> None:
    answers: list[Any] = [None, None, b"r"]
    stage = Stage(lambda _: answers.pop(0))
    assert stage.play(calls.result(OPS, "i", None)) is None
    assert stage.waits == []
    assert stage.play(calls.result(OPS, "i", 5.0)) == b"r"
    assert len(stage.waits) == 1
    late = Stage(lambda _: None)
    assert late.play(calls.result(OPS, "i", 0.3)) is None
    assert late.now < 1
