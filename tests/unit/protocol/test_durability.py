"""Durable writes. The tests check the commands around a call, and the meaning of their answers."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from headrace import ConfigurationError
from headrace._model.policy import Durability
from headrace._protocol.durability import (
    DurabilityWait,
    durable_batch,
    trials,
    tried,
    with_durability,
)
from headrace._protocol.op import Op, pack
from headrace._protocol.script import script
from headrace.errors import NotDurable
from tests.support.facts import each

BOTH = Durability(2, fsync=True)
ASK = pack(("INFO", "replication"))


def operation() -> Op[Any]:
    return Op("enqueue", script("enqueue"), (), (), lambda reply: reply)


def info(history: bytes) -> bytes:
    return b"# Replication\r\nrole:master\r\nmaster_replid:" + history + b"\r\n"


@each(
    ("text", "found"),
    [
        (None, None),
        ("replicas:1", Durability(1)),
        ("fsync", Durability(fsync=True)),
        ("fsync,replicas:2", BOTH),
    ],
)
def test_durability_is_read(text: str | None, found: Durability | None) -> None:
    assert Durability.of(text) == found
    assert Durability.of(found) == found
    assert found is None or Durability.of(str(found)) == found


@each(
    "text", ["", "replicas", "replicas:0", "replicas:1,replicas:2", "fsync,fsync", "disk", " fsync"]
)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match='give "replicas:1"'):
        Durability.of(text)


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="not int"):
        Durability.of(1)


def test_the_waits_follow_the_call_and_take_a_quarter_of_its_time_each() -> None:
    """The history is read before and after the call."""
    durability = DurabilityWait(BOTH)
    waits = [pack(("WAIT", 2, 2000)), pack(("WAITAOF", 1, 0, 2000))]
    assert durability.wrapped([b"call"], None) == [ASK, b"call", *waits, ASK]
    assert durability.wrapped([b"call"], 0.4)[2:4] == [
        pack(("WAIT", 2, 100)),
        pack(("WAITAOF", 1, 0, 100)),
    ]
    assert durability.wrapped([b"call"], 0.0)[2] == pack(("WAIT", 2, 1))
    assert DurabilityWait(Durability(1)).wrapped([], None) == [ASK, pack(("WAIT", 1, 2000)), ASK]


@each(
    ("replicas", "disk", "after", "reason"),
    [
        (2, [1, 0], info(b"aa"), None),
        (1, [1, 0], info(b"aa"), "1 replicas have it"),
        (2, [0, 0], info(b"aa"), "2 replicas have it"),
        (redis.ResponseError("NOREPLICAS"), [1, 0], info(b"aa"), "NOREPLICAS"),
        (2, [1, 0], info(b"bb"), "primary changed"),
        (2, [1, 0], info(b"aa").replace(b"master\r", b"slave\r"), "primary changed"),
        (2, [1, 0], redis.ResponseError("NOPERM"), "primary changed"),
    ],
)
def test_the_answers_decide(replicas: Any, disk: Any, after: Any, reason: str | None) -> None:
    """Too few replicas, no disk, another history or an error make a write not durable. The error
    has the call's own answer.
    """
    durability = DurabilityWait(BOTH)
    assert durability.unwrapped([info(b"aa"), b"reply", replicas, disk, after]) == [b"reply"]
    if reason is None:
        durability.judge([b"reply"])
        return
    with pytest.raises(NotDurable, match=reason) as raised:
        durability.judge([b"reply"])
    assert raised.value.replicas == (replicas if isinstance(replicas, int) else 0)
    assert raised.value.fsynced is bool(disk[0])
    durability.begin()  # the next attempt
    durability.unwrapped([info(b"bb"), b"reply", 2, [1, 0], info(b"bb")])
    durability.judge([b"reply"])


@each("every", [1, 2])
def test_where_nothing_was_written_the_wait_says_nothing(every: int) -> None:
    """An operation that was redirected, or whose script is unknown, is sent again and waited for
    there."""
    durability = DurabilityWait(Durability(1))
    moved = redis.ResponseError("MOVED 1 127.0.0.1:7000")
    before = [b"OK"] * (every - 1)
    assert durability.unwrapped([info(b"aa"), *before, moved, 0, info(b"bb")], every) == [moved]
    assert durability.unwrapped([info(b"cc"), *before, b"reply", 1, info(b"cc")], every) == [
        b"reply"
    ]
    durability.judge([b"reply"])


def test_each_node_of_a_round_trip_has_its_own_history() -> None:
    durability = DurabilityWait(Durability(1))
    for history in (b"aa", b"bb"):
        durability.unwrapped([info(history), b"reply", 1, info(history)])
    durability.judge([b"reply"])
    durability.unwrapped([info(b"aa"), b"reply", 1, info(b"bb")])
    with pytest.raises(NotDurable, match="primary changed"):
        durability.judge([b"reply"])


@each("other", [False, True])
def test_a_batch_waits_behind_its_last_part_and_asks_for_the_history_around_it(other: bool) -> None:
    """Another primary has another history, so the first parts do not precede the last there."""
    one, two, three = (op.durability for op in durable_batch([operation()] * 3, Durability(1)))
    assert one is not None
    assert two is not None
    assert three is not None
    assert one.wrapped([b"1"], None) == [ASK, b"1"]
    assert two.wrapped([b"2"], None) == [b"2"]
    assert three.wrapped([b"3"], None) == [b"3", pack(("WAIT", 1, 2000)), ASK]
    assert one.unwrapped([info(b"aa"), b"1"]) == [b"1"]
    assert two.unwrapped([b"2"]) == [b"2"]
    assert three.unwrapped([b"3", 1, info(b"bb" if other else b"aa")]) == [b"3"]
    one.judge([])
    if other:
        with pytest.raises(NotDurable, match="primary changed"):
            three.judge([])
    else:
        three.judge([])


def test_one_part_waits_for_itself() -> None:
    op = operation()
    assert with_durability(op, None) is op
    waited = with_durability(op, BOTH).durability
    assert waited is not None
    assert waited.wanted == BOTH
    (only,) = durable_batch([op], BOTH)
    assert only.durability is not None
    assert only.durability.wrapped([b"1"], None) == waited.wrapped([b"1"], None)


REDIS = b"# Server\r\nredis_version:8.2.1\r\n"
VALKEY = b"# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.0\r\n"
EVERYSEC = [b"appendfsync", b"everysec"]


def test_whether_a_server_can_be_asked() -> None:
    """A server without the command or the right to it is never asked. A replica is not asked
    yet."""
    asked = [pack(("INFO", "server")), pack(("CONFIG", "GET", "appendfsync"))]
    assert trials(BOTH) == [ASK, pack(("WAIT", 0, 1)), pack(("WAITAOF", 1, 0, 1)), *asked]
    assert trials(Durability(1)) == [ASK, pack(("WAIT", 0, 1))]
    facts = [REDIS, EVERYSEC]
    assert tried(BOTH, [info(b"aa"), 0, [1, 0], *facts])
    refused = redis.ResponseError("WAIT cannot be used with replica instances")
    assert not tried(BOTH, [info(b"aa"), refused, refused, *facts])
    for words in (
        "unknown command 'WAITAOF'",
        "NOPERM this user has no permissions",
        "when appendonly is disabled",
    ):
        with pytest.raises(ConfigurationError, match="nothing was sent"):
            tried(BOTH, [info(b"aa"), 0, redis.ResponseError(words), *facts])


@each(
    ("server", "setting", "exact"),
    [
        (VALKEY, EVERYSEC, False),
        (VALKEY, {"appendfsync": "everysec"}, False),
        (VALKEY, {b"appendfsync": b"always"}, True),
        (VALKEY, [b"appendfsync", b"always"], True),
        (VALKEY, [b"appendfsync", b"no"], True),
        (VALKEY, [], False),
        (VALKEY, redis.ResponseError("NOPERM no permissions to run 'config|get'"), False),
        (b"redis_version:7.4.2\r\n", EVERYSEC, False),
        (b"redis_version:7.4.3\r\n", EVERYSEC, True),
        (REDIS.decode(), redis.ResponseError("NOPERM"), True),
    ],
)
def test_whether_an_answer_comes_after_the_fsync(server: Any, setting: Any, exact: bool) -> None:
    answers = [info(b"aa"), [1, 0], server, setting]
    wanted = Durability(0, fsync=True)
    if exact:
        assert tried(wanted, answers)
        return
    with pytest.raises(ConfigurationError, match=r"answers WAITAOF before the fsync.*always"):
        tried(wanted, answers)
    assert tried(Durability(1), answers[:2])
