"""Operations as values. The tests check the sent arguments, and the refusals before a call."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from headrace import ConfigurationError, NewJob, Rate, Receipt
from headrace._model import checks
from headrace._model.checks import JOBS_PER_S_AT_MOST
from headrace._model.job import Claim, Job
from headrace._model.settings import QueueSettings
from headrace._model.timing import Timing
from headrace._protocol import admin_ops, view_ops
from headrace._protocol.features import results as result_ops, schedules as schedule_ops
from headrace._protocol.keys import Keys
from headrace._protocol.limits import BYTES_PER_SCRIPT, CLAIMS_PER_SCRIPT, JOBS_PER_SCRIPT
from headrace._protocol.queue_ops import Ops
from headrace.codecs import JSONCodec
from tests.support.facts import each

OPS = Ops(Keys.of("shop/orders"))


def claim(number: int, name: str = "", worker: str = "w") -> Claim:
    entry = f"{number}-0"
    return Claim(
        Job(name or entry, b"x", "shop/orders"), worker, entry, number, number, named=bool(name)
    )


# -- producing -------------------------------------------------------------------------------------


def test_plain_payloads_travel_plain() -> None:
    op = OPS.enqueue([OPS.item(b"a"), b"b", OPS.item("c"), OPS.item(NewJob(b"d"))])
    assert op.args == ["plain", b"a", b"b", b"c", b"d"]
    assert [receipt.id for receipt in op.decode([b"1-0", b"2-0", b"3-0", b"4-0"])] == [
        "1-0",
        "2-0",
        "3-0",
        "4-0",
    ]
    assert op.decode([b"7-9", 4]) == [Receipt(f"7-{n}", True) for n in (9, 10, 11, 12)]


def test_one_that_is_more_than_its_payload_makes_all_full() -> None:
    op = OPS.enqueue([b"a", OPS.item(NewJob(b"b", id="i", headers={"h": "1"}, delay=1.5))])
    assert op.args == [
        "full",
        "",
        "",
        "2",
        "data",
        b"a",
        "i",
        "+1500",
        "6",
        "data",
        b"b",
        "id",
        "i",
        "h",
        "1",
    ]


def test_a_delayed_job_needs_an_id_and_is_given_one() -> None:
    names = {
        str(OPS.item(NewJob(b"x", delay=delay))[0])
        for delay in (1, timedelta(hours=1), datetime(2030, 1, 1, tzinfo=UTC))
    }
    assert len(names) == 3
    assert all(len(name) == 24 for name in names)
    assert OPS.item(NewJob(b"x", delay=0)) == b"x"


@each(
    ("job", "error", "says"),
    [
        (5, TypeError, "payload must be bytes or str"),
        (NewJob(5), TypeError, "payload must be bytes or str"),
        (NewJob(b"x", id=""), ValueError, "id ''"),
        (NewJob(b"x", delay=-1), ValueError, "delay"),
        (NewJob(b"x", priority=1), ValueError, "priority=1"),
        (NewJob(b"x", priority="high"), TypeError, "priority must be an int"),  # type: ignore[arg-type]
        (NewJob(b"x", headers={"data": "x"}), ValueError, "header name 'data'"),
        (NewJob(b"x", queue="shop/bills"), ValueError, "only follow-ups"),
    ],
)
def test_a_bad_item_enqueues_nothing_of_its_batch(
    job: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        OPS.item(job)
    with pytest.raises(error, match=says):
        next(iter(OPS.batches([b"x"] * (2 * JOBS_PER_SCRIPT) + [job])))  # not even the first part


@each("jobs", [b"abc", "abc", bytearray(b"abc"), NewJob(b"x"), 5, None])
def test_jobs_are_an_iterable_of_jobs(jobs: Any) -> None:
    with pytest.raises(TypeError, match="jobs must be an iterable"):
        list(OPS.batches(jobs))


@each(
    ("sizes", "parts"),
    [
        ([], []),
        ([1], [1]),
        ([1] * JOBS_PER_SCRIPT, [JOBS_PER_SCRIPT]),
        ([1] * (JOBS_PER_SCRIPT + 1), [JOBS_PER_SCRIPT, 1]),
        ([1] * (2 * JOBS_PER_SCRIPT + 5), [JOBS_PER_SCRIPT, JOBS_PER_SCRIPT, 5]),
        ([BYTES_PER_SCRIPT], [1]),
        ([2 * BYTES_PER_SCRIPT], [1]),
        ([2 * BYTES_PER_SCRIPT, 2 * BYTES_PER_SCRIPT], [1, 1]),
        ([BYTES_PER_SCRIPT // 2] * 5, [2, 2, 1]),
        ([1, BYTES_PER_SCRIPT, 1], [1, 1, 1]),
    ],
)
def test_parts_are_bounded_in_jobs_and_bytes(sizes: list[int], parts: list[int]) -> None:
    ops = list(OPS.batches(b"x" * size for size in sizes))
    assert [len(op.args) - 1 for op in ops] == parts
    assert [len(item) for op in ops for item in op.items] == sizes


@each(
    ("job", "parts"),
    [
        (NewJob(b"x", headers={"k": "v"}), [333, 333, 1]),
        (NewJob(b"x", delay=5), [250, 250, 167]),
        # an entry's name: the script looks whether it is there, and so reads it
        (NewJob(b"x", id="17-0"), [1] * 667),
    ],
)
def test_what_takes_longer_goes_in_smaller_parts(job: NewJob, parts: list[int]) -> None:
    assert [len(op.items) for op in OPS.batches([job] * 667)] == parts


def test_a_call_that_may_read_a_job_is_not_joined() -> None:
    joins = [
        OPS.enqueue([OPS.item(NewJob(b"x", id=name))]).join is not None
        for name in ("a", "1-1x", "1-1", "1-1.2")
    ]
    assert joins == [True, True, False, False]


def test_headers_count_as_bytes() -> None:
    jobs = [NewJob(b"x", headers={"h": "y" * (BYTES_PER_SCRIPT // 2)}) for _ in range(4)]
    assert len(list(OPS.batches(jobs))) == 4


def test_joined_enqueues_are_one() -> None:
    one, other = OPS.enqueue([b"a"]), OPS.enqueue([OPS.item(NewJob(b"b", id="i"))])
    assert one.join == other.join
    assert one.join is not None
    assert (
        one.join([*one.items, *other.items]).args
        == OPS.enqueue([b"a", OPS.item(NewJob(b"b", id="i"))]).args
    )


# -- leasing ---------------------------------------------------------------------------------------


def test_a_lease_asks_for_what_one_script_may_hand_out() -> None:
    settings = QueueSettings(lease=5, max_attempts=3, dead_limit=7)
    ops = Ops(Keys.of("q"), settings)
    args = ["w", CLAIMS_PER_SCRIPT, "", 5000, 15_000, 3, 7, 1, "", 1]
    assert ops.lease("w", 5000, ttl=15.0, woken=True).args == args
    assert ops.lease("w", 1, duration=0.0001).args == ["w", 1, 1, 5000, 0, 3, 7, 0, "", 1]
    assert OPS.lease("w", 1).args == ["w", 1, "", 60_000, 0, 20, 1000, 0, "", 1]


@each(("block", "ms"), [(0.0, 1), (0.0001, 1), (0.5, 500), (1.0, 1000)])
def test_no_wait_is_for_ever(block: float, ms: int) -> None:
    """BLOCK 0 would be for ever."""
    command = OPS.wait(block)
    assert command[command.index("BLOCK") + 1] == ms
    assert command[:4] == ("XREADGROUP", "GROUP", "workers", "idle")


# -- settling --------------------------------------------------------------------------------------


def test_complete() -> None:
    op = OPS.complete([claim(1), claim(2)])
    assert op.args == ["", 2, 0, 0, 0, "1-0", "2-0"]
    assert op.decode([1, 0]) == [True, False]


def test_complete_fenced() -> None:
    assert OPS.complete([claim(1), claim(2)], fenced=True).args == [
        "w",
        2,
        0,
        0,
        0,
        "1-0",
        "2-0",
        1,
        2,
    ]
    fencing = Ops(Keys.of("q"), QueueSettings(fenced=True))
    assert fencing.complete([claim(1)]).args[0] == "w"
    assert fencing.complete([claim(1)], fenced=False).args[0] == ""


def test_complete_frees_ids() -> None:
    assert OPS.complete([claim(1, "i"), claim(2)]).args == ["", 2, 1, 0, 0, "1-0", "2-0", "i", ""]


def test_complete_keeps_results() -> None:
    op = OPS.complete([claim(1), claim(2, "i")], results={"2-0": b"r"})
    assert op.args == ["", 2, 1, 1, 0, "1-0", "2-0", "", "i", 2, 86_400_000, b"r"]
    assert op.keys[-1] == "headrace:{shop}:shop/orders:result:i"


def test_only_plain_completions_are_joined() -> None:
    assert OPS.complete([claim(1)]).join is not None
    assert OPS.complete([claim(1)]).join == OPS.complete([claim(2)]).join
    for options in ({"fenced": True}, {"results": {"1-0": b"r"}}, {"then": [NewJob(b"x")]}):
        assert OPS.complete([claim(1)], **options).join is None  # type: ignore[arg-type]


def test_followers() -> None:
    then = [NewJob(b"a"), NewJob(b"b", queue="shop/bills", id="i", delay=2)]
    op = OPS.complete([claim(1)], then=then)
    assert op.args[:6] == ["", 1, 0, 0, 2, "1-0"]
    assert op.args[6:] == [
        1,
        "",
        "",
        0,
        2,
        "data",
        b"a",
        1,
        "i",
        "+2000",
        0,
        4,
        "data",
        b"b",
        "id",
        "i",
    ]


@each(
    ("then", "error", "says"),
    [
        ([b"x"], TypeError, "then must hold NewJob objects, not bytes"),
        (NewJob(b"x"), TypeError, "then must be a list of NewJob"),
        (5, TypeError, "then must be a list of NewJob"),
        (
            [NewJob(b"x", queue="other")],
            ConfigurationError,
            r"'other' is of group 'other', this one of 'shop'",
        ),
        (
            [NewJob(b"x", queue="shops/orders")],
            ConfigurationError,
            "one script reaches one group only",
        ),
        ([NewJob(b"x", queue="a b")], ConfigurationError, "queue name"),
        ([NewJob(5)], TypeError, "payload must be"),
    ],
)
def test_what_can_not_follow(then: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        OPS.complete([claim(1)], then=then)


def test_a_fence_is_asked_for_or_not() -> None:
    with pytest.raises(TypeError, match="fenced must be a bool or None, not str"):
        OPS.complete([claim(1)], fenced="no")  # type: ignore[arg-type]


def test_settlements_carry_their_fence() -> None:
    claims = [claim(1), claim(7)]
    assert OPS.release(claims).args == ["w", 0, "1-0", 1, "7-0", 7]
    assert OPS.release(claims, pause=0.5).args[:2] == ["w", 500]
    assert OPS.renew(claims, duration=1.5, ttl=2).args == ["w", 1500, 2000, "1-0", 1, "7-0", 7]
    assert OPS.renew(claims).args == ["w", "", 0, "1-0", 1, "7-0", 7]
    assert OPS.dead_letter([(claims[1], "why")]).args == ["w", 1000, "7-0", 7, "why"]
    retry = OPS.retry([(claims[0], 1.5, True, "why"), (claims[1], None, False, "")])
    assert retry.args == ["w", 20, 1000, "1-0", 1, "+1500", 1, "why", "7-0", 7, "", 0, ""]


def test_max_attempts_of_a_call_comes_first() -> None:
    ops = Ops(Keys.of("q"), QueueSettings(max_attempts=5))
    items: list[Any] = [(claim(1), None, True, "")]
    assert ops.retry(items).args[1] == 5
    assert ops.retry(items, max_attempts=2).args[1] == 2
    assert ops.retry(items, max_attempts=0).args[1] == 0
    assert Ops(Keys.of("q"), QueueSettings(max_attempts=None)).retry(items).args[1] == 0


def test_retry_says_1_and_2_for_what_was_ours() -> None:
    assert OPS.retry([(claim(1), None, True, "")]).decode([2]) == [True]


@each(("reason", "sent"), [("a\ud800", "a\\ud800"), ("x" * 20_000, "x" * 10_000), ("ä", "ä")])
def test_reasons_are_short_text(reason: str, sent: str) -> None:
    assert OPS.dead_letter([(claim(1), reason)]).args[-1] == sent


@each("reason", [None, 5, b"why", ValueError("x")])
def test_a_reason_is_a_str(reason: Any) -> None:
    with pytest.raises(TypeError, match="reason must be a str"):
        OPS.retry([(claim(1), None, True, reason)])
    with pytest.raises(TypeError, match="reason must be a str"):
        OPS.dead_letter([(claim(1), reason)])


@each("build", [admin_ops.cancel, view_ops.find, result_ops.result])
def test_ids_are_checked(build: Any) -> None:
    with pytest.raises(TypeError, match="id must be a str"):
        build(OPS, 5)
    with pytest.raises(ValueError, match="id"):
        build(OPS, "")


def test_an_operation_is_pure() -> None:
    """Made twice, the operation is the same, and no state is kept."""
    for build in (
        lambda: OPS.complete([claim(1)]),
        lambda: OPS.enqueue([b"x"]),
        partial(view_ops.counts, OPS),
        lambda: OPS.lease("w", 5),
    ):
        one, other = build(), build()
        assert (one.name, one.keys, one.args, one.lane_prefix) == (
            other.name,
            other.keys,
            other.args,
            other.lane_prefix,
        )


def test_the_codec_decodes_what_is_leased() -> None:
    grant = (
        Ops(Keys.of("q"), codec=JSONCodec())
        .lease("w", 1)
        .decode([1, -1, [], [b"1-0", b'{"a":1}'], 0, 5])
    )
    assert grant is not None
    assert grant.claims[0].job.payload == {"a": 1}


BAD = [True, "5", None, -1, math.nan, math.inf, 10**5000, sys.maxsize, timedelta.max]


@each(
    "value", [pytest.param(value, id=f"{type(value).__name__}-{n}") for n, value in enumerate(BAD)]
)
@each(
    ("name", "build"),
    [
        ("limit", lambda bad: OPS.lease("w", bad)),
        ("duration", lambda bad: OPS.lease("w", 1, duration=-1 if bad is None else bad)),
        ("ttl", lambda bad: OPS.lease("w", 1, ttl=bad)),
        ("duration", lambda bad: OPS.renew([claim(1)], duration=-1 if bad is None else bad)),
        ("ttl", lambda bad: OPS.renew([claim(1)], ttl=bad)),
        ("block", OPS.wait),
        ("timeout", lambda bad: OPS.beat("w", bad)),
        ("timeout", lambda bad: OPS.register("w.1", "w", bad)),
        ("timeout", lambda bad: OPS.reclaim("w", bad)),
        ("limit", lambda bad: view_ops.listing(OPS, "waiting", "", bad)),
        (
            "max_attempts",
            lambda bad: OPS.retry(
                [(claim(1), None, 1, "")], max_attempts=-1 if bad is None else bad
            ),
        ),
        ("delay", lambda bad: admin_ops.reschedule(OPS, "i", -1 if bad is None else bad)),
        ("delay", lambda bad: OPS.retry([(claim(1), -1 if bad is None else bad, 1, "")])),
        ("delay", lambda bad: OPS.item(NewJob(b"x", delay=-1 if bad is None else bad))),
        ("priority", lambda bad: OPS.item(NewJob(b"x", priority=bad))),
        ("every", lambda bad: Timing.of(-1 if bad is None else bad, None, None)),
        ("limit", Rate),
        ("per", lambda bad: Rate(1, per=bad)),
        ("burst", lambda bad: Rate(1, burst=-1 if bad is None else bad)),
    ],
)
def test_a_number_that_no_script_could_take_is_refused_by_its_name(name, build, value):
    with pytest.raises((ValueError, TypeError), match=f"^{name}"):
        build(value)


def test_a_rate_s_tokens_come_back_in_some_time():
    assert Rate(JOBS_PER_S_AT_MOST).step == 1000 / JOBS_PER_S_AT_MOST
    with pytest.raises(ValueError, match=r"^limit.*10,000,000 jobs a second"):
        Rate(JOBS_PER_S_AT_MOST + 1)


@each(
    "then",
    [
        [NewJob(b"x")] * 1001,
        [NewJob(b"x" * 2**19)] * 3,
        [NewJob(b"x", headers={"h": "x" * 2**20})] * 2,
    ],
)
def test_more_follow_ups_than_one_script_adds_are_refused(then: list[NewJob]) -> None:
    claim = Claim(Job("1-0", b"", "q"), "w", "1-0", 1, 1)
    ops = Ops(Keys.of("q"))
    with pytest.raises(ValueError, match=r"then: .* jobs of .* enqueue the others before"):
        ops.complete([claim], then=then)
    assert ops.complete([claim], then=[NewJob(b"x")] * 1000).size < 2**20
    assert ops.complete([claim], then=[NewJob(b"x" * 2**22)]).size > 2**22


HUGE, BIG, TEXT = b"x" * 101, b"x" * 60, "é" * 51
CLAIM = Claim(Job("1-0", b"", "q"), "w", "1-0", 1, 1)


@each(
    ("what", "build"),
    [
        ("payload", lambda: OPS.item(HUGE)),
        ("payload", lambda: OPS.item(NewJob(HUGE, id="a"))),
        ("payload", lambda: list(OPS.batches([b"", HUGE]))),
        ("payload", lambda: admin_ops.cancel_payload(OPS, HUGE, "jobs", "-")),
        ("payload and headers", lambda: OPS.item(NewJob(b"", headers={"h": TEXT}))),
        ("payload and headers", lambda: list(OPS.batches([NewJob(BIG, headers={"h": TEXT})]))),
        (
            "payload and headers",
            lambda: schedule_ops.schedule(OPS, "s", Timing.of(1, None, None), "skip", NewJob(HUGE)),
        ),
        ("payload", lambda: OPS.complete([CLAIM], then=[NewJob(HUGE)])),
        ("result", lambda: result_ops.result_bytes(OPS, HUGE)),
        (
            "result and then",
            lambda: OPS.complete([CLAIM], results={"1-0": BIG}, then=[NewJob(BIG)]),
        ),
    ],
)
def test_what_no_server_takes_is_refused_by_its_name(monkeypatch, what, build):
    monkeypatch.setattr(checks, "VALUE_BYTES", 100)
    with pytest.raises(ValueError, match=rf"^{what}: 1\d\d bytes; a server takes 100 at most"):
        build()


def test_what_a_server_takes_is_not_refused(monkeypatch):
    monkeypatch.setattr(checks, "VALUE_BYTES", 100)
    assert OPS.item(b"x" * 100) == b"x" * 100
    assert (
        sum(
            len(op.items) for op in OPS.batches([b"x" * 100, NewJob(b"x" * 97, headers={"h": "é"})])
        )
        == 2
    )
    assert result_ops.result_bytes(OPS, b"x" * 100) == b"x" * 100
