"""The places where a queue uses its codec, and those where it uses the codec's form for other
values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from headrace import NewJob, Queue, RetryLater
from headrace._core.verdicts import undecoded
from headrace._model.job import Postponed
from headrace._model.settings import QueueSettings
from headrace._model.timing import Timing
from headrace._protocol import replies
from headrace._protocol.features import results as result_ops, schedules as schedule_ops
from headrace._protocol.jobs import Jobs
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops
from headrace.codecs import JSONCodec, Offloaded
from headrace.errors import CodecError


@dataclass
class Mail:
    to: str


class Shelf(dict[str, bytes]):
    """A store in memory."""

    def put(self, key: str, data: bytes) -> None:
        self[key] = data

    get = dict.__getitem__  # type: ignore[assignment]

    def delete(self, key: str) -> None:
        if key == "stuck":
            raise OSError("no route")
        self.pop(key, None)


TYPED = Ops(Keys.of("group/q"), codec=JSONCodec(Mail))
MAIL = b'{"to":"ada"}'


def granted(ops: Ops, *payloads: bytes, taken: Any = ()) -> Any:
    fresh = [x for n, payload in enumerate(payloads, 1) for x in (b"%d-0" % n, payload)]
    return Jobs("q", ops.codec).grant([1, -1, list(taken), fresh, 0, 1000], "w", None)


def test_payloads_are_of_the_type() -> None:
    assert TYPED.item(Mail("ada")) == MAIL
    for payload in (b"x", {"to": "ada"}, NewJob(b"x"), NewJob({"to": "ada"}, id="a")):
        with pytest.raises(TypeError, match="payload must be Mail"):
            TYPED.item(payload)
    with pytest.raises(CodecError, match="payload is no Mail"):
        list(TYPED.batches([Mail("ada"), Mail(5)]))  # type: ignore[arg-type]


def test_results_are_of_any_type() -> None:
    assert result_ops.result_bytes(TYPED, {"sent": 5}) == b'{"sent":5}'


def test_follow_ups_in_other_queues_are_of_any_type() -> None:
    assert TYPED.follow(NewJob({"number": 5}, queue="group/next"))[3][:2] == [
        "data",
        b'{"number":5}',
    ]
    assert TYPED.follow(NewJob(Mail("ada")))[3][:2] == ["data", MAIL]
    with pytest.raises(TypeError, match="payload must be Mail"):
        TYPED.follow(NewJob({"number": 5}, queue="group/q"))


def test_payloads_of_schedules_stay_in_the_queue() -> None:
    shelf = Shelf()
    ops = Ops(Keys.of("q"), codec=Offloaded(JSONCodec(Mail), shelf, over=0))  # type: ignore[arg-type]
    op = schedule_ops.schedule(ops, "s", Timing.of(5.0, None, None), "once", NewJob(Mail("ada")))(0)
    assert MAIL in op.args
    assert not shelf
    ops.item(Mail("ada"))
    assert len(shelf) == 1


def test_what_is_done_is_discarded() -> None:
    """The call that completes a job discards its stored payload, even if the store raises. No other
    call does."""
    shelf = Shelf()
    ops = Ops(Keys.of("q"), codec=Offloaded(None, shelf, over=1))  # type: ignore[arg-type]
    tickets = [ops.item(payload) for payload in (b"one", b"two", b"three")]
    grant = granted(
        ops,
        *tickets[:2],
        b"4",
        taken=[[b"9-0", [b"a", b"b", b"data", tickets[2], b"id", b"x"], 1, 0]],
    )
    assert [claim.job.payload for claim in grant.claims] == [b"three", b"one", b"two", b"4"]
    assert [hasattr(claim, "ticket") for claim in grant.claims] == [True, True, True, False]
    grant.claims[1].ticket = "stuck"
    op = ops.complete(grant.claims)
    assert op.decode([1, 1, 0]) == [True, True, False]  # the script had no room for the fourth
    assert sorted(shelf.values()) == [b"one", b"two"]
    assert ops.complete(grant.claims[2:]).decode([1, 1]) == [True, True]
    assert sorted(shelf.values()) == [b"one"]


def test_codecs_that_keep_nothing_cost_nothing() -> None:
    grant = granted(TYPED, MAIL)
    assert not hasattr(grant.claims[0], "ticket")
    assert TYPED.complete(grant.claims).decode is replies.bools


class Away:
    def encode(self, payload: bytes) -> bytes:
        return payload

    def decode(self, data: bytes) -> bytes:
        if data == b"later":
            raise RetryLater(timedelta(seconds=5), "the store is away")
        if data == b"never":
            raise RetryLater(float("nan"))
        return data


def test_what_can_be_decoded_later_is_no_dead_letter() -> None:
    ops = Ops(Keys.of("q"), codec=Away())
    grant = granted(
        ops, b"later", b"fine", b"never", taken=[[b"9-0", [b"data", b"later", b"id", b"x"], 2, 0]]
    )
    assert [claim.job.payload for claim in grant.claims] == [b"fine"]
    assert [claim.job.payload for claim, _ in grant.undecodable] == [b"later"] * 2 + [b"never"]
    ends = [undecoded(claim, reason) for claim, reason in grant.undecodable]
    assert [(end.kind, end.delay, end.spend) for end in ends[:2]] == [("retry", 5.0, 0)] * 2
    assert ends[0].reason == "payload does not decode yet: the store is away"
    assert ends[2].kind == "dead"
    assert "delay=nan: give at least 0" in ends[2].reason
    assert not isinstance(ends[2].reason, Postponed)


def test_jobs_are_not_cancelled_by_payloads_that_encode_differently_each_time() -> None:
    with (
        Queue("q", url="redis://localhost:1", codec=Offloaded(None, Shelf())) as queue,  # type: ignore[arg-type]
        pytest.raises(
            ValueError, match=r"Offloaded\(.*encodes equal payloads differently: cancel jobs by id"
        ),
    ):
        queue.admin.cancel_payload(b"x")


def test_what_a_queue_declares_of_its_codec() -> None:
    """The formats are declared from the outermost to the innermost. The names of the types are left
    out."""
    codec = Offloaded(JSONCodec(Mail), Shelf())  # type: ignore[arg-type]
    assert (
        Ops(Keys.of("q"), QueueSettings(), codec).declaration()["codec"] == "Offloaded(JSONCodec)"
    )
    assert TYPED.declaration()["codec"] == "JSONCodec"
