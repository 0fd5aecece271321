"""Decoding foreign replies. Every entry, letter, event or schedule ends in a value that shows
it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, strategies as st

from headrace._core.notices import events
from headrace._model.codec import BytesCodec
from headrace._model.job import Escaped
from headrace._model.settings import QueueSettings
from headrace._model.state import JobState
from headrace._protocol import replies
from headrace._protocol.features import schedules as schedule_ops
from headrace._protocol.jobs import Jobs
from headrace._protocol.keys import Keys, wire_id
from headrace._protocol.queue_ops import Ops
from headrace.codecs import JSONCodec
from tests.support.facts import each

NAMES = st.sampled_from(
    [
        b"data",
        b"id",
        b"attempt",
        b"enq",
        b"reason",
        b"worker",
        b"released",
        b"kind",
        b"headrace-flow",
    ]
)
VALUES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [
            b"",
            b"0",
            b"-1",
            b"9" * 400,
            b"1e9",
            b"\xff",
            "\u0661".encode(),
            b"1_000",
            b"nan",
            b" 7 ",
            b"id",
            b"data",
        ]
    ),
)
FIELDS = st.lists(st.tuples(st.one_of(NAMES, VALUES), VALUES), max_size=8).map(
    lambda pairs: [x for pair in pairs for x in pair]
)
ENTRIES = st.sampled_from(
    [
        b"5-0",
        b"5-0.3",
        b"0-1",
        b"18446744073709551615-18446744073709551615",
        b"late",
        b"\xff",
        b"",
        b"-",
    ]
)
STATES = st.sampled_from([b"waiting", b"parked", b"leased", b"delayed", b"blocked", b"dead"])
WHOLE = st.integers(-(1 << 63), (1 << 63) - 1)
COUNTS = st.integers(0, 1 << 53)
CODECS = [BytesCodec(), JSONCodec()]


@given(ENTRIES, FIELDS, STATES, COUNTS, COUNTS, VALUES, WHOLE, st.sampled_from(CODECS))
def test_rows_of_listings(
    entry: bytes,
    fields: list[bytes],
    state: bytes,
    count: int,
    releases: int,
    worker: bytes,
    ms: int,
    codec: Any,
) -> None:
    row = [entry, fields, state, count, releases, worker, ms]
    jobs = Jobs("q", codec)
    (shown,) = jobs.page([b"", 5, [row]])
    found, _ = jobs.found([5, row, b""])
    assert found is not None
    assert (found.job.id, found.state, found.reason) == (shown.job.id, shown.state, shown.reason)
    check(shown, fields)


def check(shown: JobState, fields: Sequence[bytes]) -> None:
    """Check that the value shows the fields that exist and the reason why others are missing."""
    pairs = dict(zip(fields[::2], fields[1::2], strict=True))
    job = shown.job
    assert job.id.encode() is not None
    assert job.attempt >= 1
    assert all(isinstance(x, str) for pair in job.headers.items() for x in pair)
    assert isinstance(job.payload, bytes) or not shown.reason or shown.state == "dead"
    if b"data" not in pairs:
        assert job.payload == b""
        assert shown.reason is not None


@given(ENTRIES, FIELDS, COUNTS, COUNTS, st.lists(VALUES, max_size=4), st.sampled_from(CODECS))
def test_grants(
    entry: bytes, fields: list[bytes], count: int, releases: int, fresh: list[bytes], codec: Any
) -> None:
    """Each entry becomes a claim or is quarantined with a reason. None is lost or stops the
    others."""
    pairs = [x for n, payload in enumerate(fresh) for x in (b"%d-0" % n, payload)]
    reply = [1, -1, [[entry, fields, count, releases]], pairs, 0, 1000]
    grant = Jobs("q", codec).grant(reply, "w", None)
    assert grant is not None
    assert len(grant.claims) + len(grant.undecodable) == 1 + len(fresh)
    assert all(reason for _, reason in grant.undecodable)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["at", "ids", "worker", "x"]), inner, max_size=4),
    ),
    max_leaves=12,
)
MESSAGES = st.one_of(
    st.binary(max_size=30),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [
            b"[" * 100_000,
            b'{"at":1' + b"0" * 400 + b"}",
            b'{"at":5,"ids":["\\ud800"]}',
            b'{"at":5,"ids":["\xff"]}',
        ]
    ),
)


@given(MESSAGES)
def test_events_of_anybody(message: bytes) -> None:
    for event in events("q", "headrace:{q}:q:events:added", message):
        assert event.id is None or event.id.encode() is not None


@given(
    st.lists(
        st.tuples(
            VALUES,
            WHOLE,
            st.one_of(VALUES, st.sampled_from([b"every 0", b"every -5", b"every 5", b"cron"])),
            VALUES,
        )
    )
)
def test_schedules_of_anybody(rows: list[tuple[bytes, int, bytes, bytes]]) -> None:
    reply = [1_700_000_000_000, -1, [list(row) for row in rows], b""]
    ops = Ops(Keys.of("q"), QueueSettings())
    ticking = schedule_ops.due_schedules(reply)
    assert len(schedule_ops.listed(ticking)) == len(rows)
    plan = schedule_ops.plan_ticks(ops, ticking)
    assert len(plan.ops) + len(plan.wrong) == len(rows)


@given(
    st.lists(
        st.tuples(
            VALUES, WHOLE, WHOLE, COUNTS, VALUES, VALUES, st.just([]) | st.tuples(VALUES, WHOLE)
        )
    )
)
def test_workers_of_anybody(rows: list[tuple[Any, ...]]) -> None:
    assert len(replies.workers([5, *map(list, rows)], "q")) == len(rows)


@each("raw", [b"\xff", b"a\xc3", b"\xed\xa0\x80"])
def test_an_id_that_is_no_utf8_is_sent_back_as_it_is(raw: bytes) -> None:
    (claim,) = (
        Jobs("q", BytesCodec())
        .grant([1, -1, [[b"5-0", [b"data", b"x", b"id", raw], 1, 0]], [], 0, 1000], "w", None)
        .claims
    )  # type: ignore[union-attr]
    assert claim.job.id == raw.decode("utf-8", "backslashreplace")
    assert isinstance(claim.job.id, Escaped)
    ops = Ops(Keys.of("q"))
    assert raw in [one for one in ops.complete([claim]).args if isinstance(one, bytes)]
    own, alike = wire_id(claim.job.id), wire_id(str(claim.job.id))
    assert isinstance(own, bytes)
    assert own == raw
    assert alike == str(claim.job.id)  # an id that only looks like it is another


def test_a_letter_of_somebody_else() -> None:
    jobs = Jobs("q", BytesCodec())
    (shown,) = jobs.page([b"", 5, [[b"1500-0", [b"data", b"x"], b"dead", 0, 0, b"", 0]]])
    assert (shown.job.id, shown.job.payload, shown.reason, shown.since) == (
        "1500-0",
        b"x",
        "put here by somebody else",
        1.5,
    )
