"""Decoding replies. They come as raw bytes of the scripts, or as text from a client that
decodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace import Counts, Receipt
from headrace._model.codec import BytesCodec
from headrace._protocol import replies
from headrace._protocol.features import results as result_ops
from headrace._protocol.jobs import Jobs
from headrace._protocol.replies import Reclaimed
from headrace.codecs import JSONCodec
from headrace.errors import ReplyError
from headrace.inspect import OtherTerms, Repairs, WorkerFacts
from tests.support.facts import each

JOBS = Jobs("q", BytesCodec())
FACTS = {"host": "h", "pid": 7, "version": "1.0", "python": "3.11", "memory": 2**20, "slots": 4}
NOW = 1_700_000_000_000


def decoded(reply: Any) -> Any:
    """Return a reply as a client with `decode_responses` gives it to `op.decode`."""
    if isinstance(reply, bytes):
        return reply.decode()
    return [decoded(item) for item in reply] if isinstance(reply, list) else reply


def same(decode: Any, reply: Any) -> Any:
    """Return the decoded value, which must be the same for both kinds of client."""
    value = decode(reply)
    assert repr(decode(decoded(reply))) == repr(value)
    return value


@each(
    ("decode", "reply", "expected"),
    [
        (replies.bools, [1, 0, 2], [True, False, True]),
        (replies.bools, [], []),
        (
            replies.receipts,
            [b"a", 1, b"1-0", 1, b"b", 0],
            [Receipt("a", True), Receipt("1-0", True), Receipt("b", False)],
        ),
        (replies.receipts, [], []),
        (replies.plain_receipts, [b"1-9", 2], [Receipt("1-9", True), Receipt("1-10", True)]),
        (replies.plain_receipts, [b"1-0", b"1-1"], [Receipt("1-0", True), Receipt("1-1", True)]),
        (replies.counts, list(range(12)), Counts(*range(11), held=11)),
        (
            replies.reclaimed,
            [3, 25, 1, 0, 2, -1, 1500],
            Reclaimed(3, 0.025, 1, False, 2, None, 1.5),
        ),
        (replies.moved, [3, b""], (3, "")),
        (replies.repairs, [b"ids", b"7", *range(12)], (Repairs(*range(12)), "ids", "7")),
        (result_ops.kept, [None, b"", b"r", "r", 0], [None, b"", b"r", b"r", False]),
    ],
)
def test_simple_replies(decode: Any, reply: Any, expected: Any) -> None:
    assert same(decode, reply) == expected


def test_workers() -> None:
    told = b"1700000000000 " + json.dumps(FACTS).encode()
    reply = [
        NOW,
        [b"w", NOW + 5000, NOW - 1000, 3, told, b"quiet", []],
        [b"v", 0, 0, 0, b"", b"", [b"", 7000]],
    ]
    alive, dead = same(lambda r: replies.workers(r, "q"), reply)
    assert (alive.name, alive.queue, alive.leased, alive.alive) == ("w", "q", 3, True)
    assert (alive.since, alive.deadline) == (NOW / 1000 - 1, NOW / 1000 + 5)
    assert (dead.name, dead.alive, dead.facts, dead.asked) == ("v", False, None, "")
    assert (alive.differs, dead.differs) == (None, OtherTerms("", 7.0))
    assert (alive.facts, alive.asked) == (
        WorkerFacts("h", "1.0", "3.11", 7, 2**20, 4, NOW / 1000),
        "quiet",
    )


@each(
    "told",
    ["", "5", "5 {}", "5 []", "x " + json.dumps(FACTS), '5 {"host": Infinity}', "5 " + "[" * 5000],
)
def test_foreign_facts_are_none(told: str) -> None:
    assert replies.facts(told) is None


def test_text_stays_visible() -> None:
    assert replies.text(b"\xff\xc3\xa4") == "\\xff\u00e4"
    assert (replies.text("a"), replies.text(5)) == ("a", "5")
    assert (replies.raw("ä"), replies.raw(b"a"), replies.raw(bytearray(b"a"))) == (
        "ä".encode(),
        b"a",
        b"a",
    )


# -- jobs ------------------------------------------------------------------------------------------


def job(
    fields: list[bytes], deliveries: int = 1, releases: int = 0, entry: bytes = b"1500-3"
) -> Any:
    found, token, wrong = same(lambda row: JOBS.job(*row), [entry, fields, deliveries, releases])
    return found, token, wrong


def test_a_payload_and_nothing_else() -> None:
    found, token, wrong = job([b"data", b"x"])
    assert (found.id, found.payload, found.queue, dict(found.headers)) == ("1500-3", b"x", "q", {})
    assert (found.attempt, found.enqueued_at, token, wrong) == (1, 1.5, 1, "")


def test_all_fields() -> None:
    fields = [b"data", b"x", b"id", b"i", b"attempt", b"4", b"enq", b"900", b"b", b"2", b"a", b"1"]
    found, token, _ = job(fields, deliveries=3, releases=2)
    assert (found.id, found.enqueued_at, list(found.headers.items())) == (
        "i",
        0.9,
        [("b", "2"), ("a", "1")],
    )
    assert (token, found.attempt) == (7, 5)  # the token counts releases, too


@each(
    ("fields", "expected"),
    [
        ([b"data", b"x", b"attempt", b"many"], ("1500-3", 1, 1.5)),
        ([b"data", b"x", b"attempt", b"-5"], ("1500-3", 1, 1.5)),
        ([b"data", b"x", b"attempt", b"9" * 30], ("1500-3", 1, 1.5)),
        ([b"data", b"x", b"enq", b"yesterday"], ("1500-3", 1, 0.0)),
        ([b"data", b"x", b"id", b"\xff"], ("\\xff", 1, 1.5)),
        ([b"id", b"i", b"data", b"x", b"id", b"j", b"data", b"y"], ("i", 1, 1.5)),
    ],
)
def test_whatever_a_foreign_producer_writes(fields: list[bytes], expected: tuple[Any, ...]) -> None:
    found, _, wrong = JOBS.job(b"1500-3", fields, 1)
    assert (found.id, found.attempt, found.enqueued_at) == expected
    assert (found.payload, wrong) == (b"x", "")


def test_no_payload() -> None:
    found, token, wrong = job([b"payload", b"x"])
    assert (found.payload, dict(found.headers), token) == (b"", {"payload": "x"}, 1)
    assert wrong == "no payload: the entry has no field 'data'"


def test_a_payload_that_does_not_decode_stays_raw() -> None:
    found, _, wrong = Jobs("q", JSONCodec()).job(b"1-0", [b"data", b"{", b"h", b"1"], 1)
    assert found.payload == b"{"
    assert wrong.startswith("payload does not decode: DecodeError: ")


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Broken:
    def encode(self, payload: Any) -> bytes:
        raise Silent

    def decode(self, data: bytes) -> Any:
        raise Silent


def test_a_codec_error_without_words() -> None:
    found, _, wrong = Jobs("q", Broken()).job(b"1-0", [b"data", b"{"], 1)
    assert (found.payload, wrong) == (b"{", "payload does not decode: Silent")


def test_an_attempt_is_at_least_the_first() -> None:
    assert job([b"data", b"x"], deliveries=1, releases=5)[0].attempt == 1


# -- leases ----------------------------------------------------------------------------------------


def test_a_grant() -> None:
    """The jobs that were taken over come before the new ones. Jobs that can't be decoded are kept
    apart."""
    taken = [
        [b"1-0", [b"data", b"1", b"h", b"x"], 3, 1],
        [b"2-0", [b"data", b"?"], 1, 0],
        [b"3-0", [b"x", b"1"], 1, 0],
    ]
    reply = [1, 1500, taken, [b"4-0", b"4", b"5-0", b"?"], 1, NOW]
    jobs = Jobs("q", JSONCodec())
    grant = same(lambda r: jobs.grant(r, "w", 5.0), reply)
    assert grant is not None
    one, four = grant.claims
    assert (one.entry, one.count, one.token, one.job.payload, one.job.attempt) == (
        "1-0",
        3,
        3,
        1,
        2,
    )
    assert (four.entry, four.count, four.token, four.job.payload, four.job.attempt) == (
        "4-0",
        1,
        1,
        4,
        1,
    )
    for claim in (one, four):
        assert (claim.worker, claim.duration, claim.leased_at) == ("w", 5.0, NOW / 1000)
    assert [claim.entry for claim, _ in grant.undecodable] == ["2-0", "3-0", "5-0"]
    assert all(reason for _, reason in grant.undecodable)
    assert [claim.job.payload for claim, _ in grant.undecodable] == [b"?", b"", b"?"]
    assert (grant.next_due, grant.healed) == (1.5, True)


def test_an_empty_grant() -> None:
    grant = JOBS.grant([1, -1, [], [], 0, NOW], "w", None)
    assert grant is not None
    assert (grant.claims, grant.undecodable, grant.next_due, grant.healed) == ([], [], None, False)
    now = JOBS.grant([1, 0, [], [], 0, NOW], "w", None)
    assert now is not None
    assert now.next_due == 0.0


def test_no_grant_for_the_dead() -> None:
    assert JOBS.grant([0, -1, [], [], 0, NOW], "w", None) is None


@each("reply", [None, 5, b"OK", [], [1, 2, 3], b"x" * 1000])
def test_what_no_script_answers(reply: Any) -> None:
    with pytest.raises(ReplyError, match="lease answered") as raised:
        JOBS.grant(reply, "w", None)
    assert len(str(raised.value)) < 250


# -- listings --------------------------------------------------------------------------------------


def state(name: bytes, fields: list[bytes], *rest: Any, entry: bytes = b"1500-0") -> Any:
    return same(lambda row: JOBS.state(row, NOW), [entry, fields, name, *rest])


def test_states() -> None:
    waiting = state(b"waiting", [b"data", b"x"], 0, 0, b"", 0)
    assert (waiting.state, waiting.job.id, waiting.job.attempt, waiting.worker, waiting.since) == (
        "waiting", "1500-0", 1, None, None,
    )  # fmt: skip
    parked = state(b"parked", [b"data", b"x"], 2, 1, b"parked", 77)
    assert (parked.state, parked.worker, parked.job.attempt) == ("parked", None, 1)
    leased = state(b"leased", [b"data", b"x"], 2, 0, b"w", 4000)
    assert (leased.state, leased.worker, leased.since, leased.job.attempt) == (
        "leased",
        "w",
        NOW / 1000 - 4,
        2,
    )
    delayed = state(
        b"delayed", [b"data", b"x", b"id", b"i", b"enq", b"900"], 0, 0, b"", NOW, entry=b"i"
    )
    assert (delayed.state, delayed.due, delayed.job.id, delayed.job.enqueued_at) == (
        "delayed",
        NOW / 1000,
        "i",
        0.9,
    )
    foreign = state(b"waiting", [b"data", b"x", b"enq", b"yesterday"], 0, 0, b"", 0)
    assert (foreign.enqueued_at, waiting.enqueued_at) == (None, 1.5)
    letter = [b"reason", b"why", b"worker", b"w", b"released", b"2"]
    dead = state(
        b"dead",
        [*letter, b"data", b"x", b"id", b"i", b"attempt", b"5", b"enq", b"900"],
        0,
        0,
        b"",
        0,
    )
    assert (dead.state, dead.reason, dead.worker, dead.since) == ("dead", "why", "w", 1.5)
    assert (dead.job.id, dead.job.attempt, dead.enqueued_at) == ("i", 3, 0.9)


def test_a_page() -> None:
    rows = [[b"1-0", [b"data", b"x"], b"waiting", 0, 0, b"", 0]]
    page = JOBS.page([b"new (1-0", NOW, rows])
    assert (page.cursor, [item.job.id for item in page]) == ("new (1-0", ["1-0"])
    assert JOBS.page([b"", NOW, []]).cursor == ""


def test_found() -> None:
    found, cursor = JOBS.found([NOW, [b"1-0", [b"data", b"x"], b"waiting", 0, 0, b"", 0], b""])
    assert found is not None
    assert (found.job.id, cursor) == ("1-0", "")
    assert JOBS.found([NOW, [], b"(1-0"]) == (None, "(1-0")
