"""Queues of a type, and payloads that are compressed, encrypted or elsewhere, from the producer to
the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import ConfigurationError, Counts, NewJob
from headrace.codecs import (
    Compressed,
    DirectoryStore,
    Encrypted,
    JSONCodec,
    MsgpackCodec,
    Offloaded,
    PydanticCodec,
)
from headrace.errors import CodecError
from tests.support.colours import Connect
from tests.support.steps import LONG, payloads

for extra in ("pydantic", "zstandard", "cryptography"):
    pytest.importorskip(extra)


@dataclass
class Mail:
    to: str
    text: str = ""


MAILS = [Mail("ada"), Mail("ben", "long " * 1000), Mail("cyd", "ä")]
KEYS = {"k": bytes(32)}
CODECS: dict[str, Callable[[Path], Any]] = {
    "json": lambda _: JSONCodec(Mail),
    "msgpack": lambda _: MsgpackCodec(Mail),
    "pydantic": lambda _: PydanticCodec(Mail),
    "compressed": lambda _: Compressed(JSONCodec(Mail)),
    "encrypted": lambda _: Encrypted(JSONCodec(Mail), KEYS),
    "offloaded": lambda path: Offloaded(JSONCodec(Mail), DirectoryStore(path), over=100),
    "all": lambda path: Offloaded(
        Encrypted(Compressed(MsgpackCodec(Mail)), KEYS), DirectoryStore(path), over=0
    ),
}


@pytest.mark.parametrize("name", CODECS)
def test_from_the_producer_to_the_result(
    name: str, newest_connect: Connect, tmp_path: Path
) -> None:
    """The payload is the same after an enqueue, a delay, a retry and a look. An invalid value is
    refused before a call.
    """
    codec = CODECS[name](tmp_path)
    queue = newest_connect(codec=codec)
    with pytest.raises(TypeError, match="payload must be Mail, not bytes"):
        queue.enqueue(b"x")
    with pytest.raises(CodecError, match="payload"):
        queue.enqueue_many([MAILS[0], NewJob(Mail(5), id="x")])  # type: ignore[arg-type]
    assert queue.counts() == Counts()
    queue.enqueue(MAILS[0], id="a")
    queue.enqueue_many([MAILS[1], NewJob(MAILS[2], id="c", delay=LONG)])
    assert payloads(queue.admin.waiting()) == MAILS[:2]
    assert queue.admin.peek().payload == MAILS[0]
    assert queue.find("c").job.payload == MAILS[2]
    first, second = queue.lease_many(5)
    assert first.retry()
    assert second.complete({"sent": True}, then=[NewJob(MAILS[2])])
    assert queue.result(second.job.id) == {"sent": True}
    again = queue.lease_many(5)
    assert [lease.job.payload for lease in again] == [MAILS[0], MAILS[2]]
    assert queue.complete_many(again) == [True, True]
    assert queue.cancel("c")
    assert queue.counts() == Counts(enqueued=4, completed=3, cancelled=1)


@pytest.mark.parametrize("name", CODECS)
def test_what_is_no_payload_is_put_aside(
    name: str, newest_connect: Connect, tmp_path: Path
) -> None:
    plain, queue = newest_connect(), newest_connect(codec=CODECS[name](tmp_path))
    plain.enqueue_many(
        [b"\xff\x00", b'{"to":5}', b"", b"HRO1", b"HRE1\x01k" + bytes(60), b"\x28\xb5\x2f\xfd"]
    )
    queue.enqueue(MAILS[0])
    assert queue.lease().job.payload == MAILS[0]
    letters = list(queue.admin.dead())
    assert len(letters) == 6
    assert all(letter.reason.startswith("payload does not decode: ") for letter in letters)
    assert letters[0].job.payload == b"\xff\x00"


def test_another_key_is_named_and_never_told(newest_connect: Connect) -> None:
    """Payloads of another key are quarantined with a reason. Redriven to a client with that key,
    they decode."""
    secret = bytes(range(32))
    mine, theirs = (
        newest_connect(codec=Encrypted(JSONCodec(), keys))
        for keys in ({"2026": secret}, {"2025": bytes(32)})
    )
    mine.enqueue({"a": "secret text"})
    assert theirs.lease() is None
    (letter,) = theirs.admin.dead()
    said = "payload is encrypted by key '2026', which is not among those given: '2025'"
    assert letter.reason == f"payload does not decode: CodecError: {said}"
    assert b"secret text" not in letter.job.payload
    assert mine.admin.redrive() == 1
    assert mine.lease().job.payload == {"a": "secret text"}


def test_a_sealed_payload_opens_in_its_own_queue_and_job(newest_connect: Connect) -> None:
    """Its bytes do not decode in another queue or under another id. They are quarantined, and
    `move` is refused."""
    codec = Encrypted(JSONCodec(), KEYS)
    queue, other = newest_connect("g/a", codec=codec), newest_connect("g/b", codec=codec)
    plain, raw = newest_connect("g/a"), newest_connect("g/b")
    queue.enqueue({"n": 1}, id="one")
    queue.enqueue({"n": 2})
    sealed = payloads(plain.admin.waiting())
    raw.enqueue_many([*sealed, NewJob(sealed[0], id="one"), NewJob(sealed[1], id="two")])
    assert other.lease() is None
    assert other.counts().dead == 4
    assert {letter.reason.partition(": ")[0] for letter in other.admin.dead()} == {
        "payload does not decode"
    }
    plain.enqueue(sealed[0], id="two")
    with pytest.raises(ConfigurationError, match="binds payloads to their queue"):
        queue.admin.move("g/b")
    assert [lease.job.payload for lease in queue.lease_many(2)] == [{"n": 1}, {"n": 2}]
    assert queue.lease() is None
    assert [letter.job.id for letter in queue.admin.dead()] == ["two"]


def test_follow_ups_open_in_the_queue_that_they_go_to(newest_connect: Connect) -> None:
    codec = Encrypted(JSONCodec(), KEYS)
    queue, other = newest_connect("g/a", codec=codec), newest_connect("g/b", codec=codec)
    queue.enqueue(1, id="a", delay=0.001)
    assert queue.lease(block=LONG).complete(
        "r", then=[NewJob(2, queue="g/b"), NewJob(3, id="x", queue="g/b")]
    )
    assert queue.result("a") == "r"
    assert [lease.job.payload for lease in other.lease_many(2)] == [2, 3]


def test_what_is_offloaded_goes_with_its_job(newest_connect: Connect, tmp_path: Path) -> None:
    """Retries, dead letters and redrives keep the stored payload, and the completion removes it. A
    sweep removes cancelled ones.
    """
    store = DirectoryStore(tmp_path)
    queue = newest_connect(codec=Offloaded(None, store, over=10), max_attempts=2)
    queue.enqueue(b"x" * 11, id="a")
    assert queue.lease().retry()
    assert queue.lease().retry(reason="no")
    assert len(list(tmp_path.iterdir())) == 1
    assert queue.admin.redrive() == 1
    lease = queue.lease()
    assert lease.job.payload == b"x" * 11
    assert lease.complete()
    assert not lease.complete()
    assert not list(tmp_path.iterdir())
    queue.enqueue(b"y" * 11)
    assert queue.lease(at_most_once=True).job.payload == b"y" * 11
    assert not list(tmp_path.iterdir())
    queue.enqueue(b"z" * 11, id="z")
    assert queue.cancel("z")
    assert len(list(tmp_path.iterdir())) == 1
    assert store.sweep(3600) == 0


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"shards": 2}, {"fair": "tenant"}, {"history": 9}, {"priorities": 2}], ids=str
)
def test_what_is_completed_by_its_lease_leaves_no_payload(
    newest_connect: Connect, tmp_path: Path, sealed: bool, options: dict[str, Any]
) -> None:
    """One job, several jobs, and queues with other scripts of leases are tested."""
    codec = Encrypted(JSONCodec(Mail), KEYS) if sealed else JSONCodec(Mail)
    for name in ("", "named"):
        queue = newest_connect(codec=Offloaded(codec, DirectoryStore(tmp_path), over=0), **options)
        queue.enqueue_many(
            [NewJob(MAILS[1], id=f"{name}{at}" if name else None) for at in range(5)]
        )
        leases = [queue.lease(at_most_once=True), *queue.lease_many(9, at_most_once=True)]
        assert [lease.job.payload for lease in leases] == [MAILS[1]] * 5
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    "codec", [lambda codec: codec, lambda codec: Encrypted(codec, KEYS)], ids=["plain", "sealed"]
)
@pytest.mark.parametrize("id", ["a", None], ids=["named", "unnamed"])
def test_a_mended_payload_leaves_no_old_one(
    newest_connect: Connect, tmp_path: Path, codec: Callable[[Any], Any], id: str | None
) -> None:
    """A redrive with another payload deletes the replaced one, and no other."""
    queue = newest_connect(codec=codec(Offloaded(None, DirectoryStore(tmp_path), over=10)))
    keys = [queue.enqueue(byte * 11, id=name).id for byte, name in ((b"x", id), (b"y", "b"))]
    before = set(tmp_path.iterdir())
    assert queue.admin.redrive(keys[0], payload=b"z" * 11) == 0  # it lives
    assert before < set(tmp_path.iterdir())
    for lease in queue.lease_many(2):
        lease.dead_letter("no")
    for payload, files in ((b"z" * 12, 3), (b"small", 2)):
        assert queue.admin.redrive(keys[0], payload=payload) == 1
        assert len(list(tmp_path.iterdir())) == files
        lease = queue.lease()
        assert lease.job.payload == payload
        lease.dead_letter("no")
    assert queue.admin.redrive(*keys) == 2
    assert sorted(lease.job.payload for lease in queue.lease_many(2)) == [b"small", b"y" * 11]


def test_a_store_that_is_away_costs_no_job(newest_connect: Connect, tmp_path: Path) -> None:
    """Its jobs are delayed with no attempt spent. Small payloads go on. A missing payload is
    quarantined."""
    path = tmp_path / "mounted"
    queue = newest_connect(codec=Offloaded(None, DirectoryStore(path), over=10), dead_limit=1)
    queue.enqueue_many([b"x" * 11, b"small", b"y" * 11])
    path.rename(tmp_path / "away")
    assert [lease.job.payload for lease in queue.lease_many(9)] == [b"small"]
    assert queue.counts() == Counts(delayed=2, leased=1, enqueued=3)
    (tmp_path / "away").rename(path)
    for state in list(queue.admin.delayed()):
        assert queue.admin.reschedule(state.job.id, None)
    lease = queue.lease()
    assert (lease.job.payload, lease.job.attempt) == (b"x" * 11, 1)
    for file in path.iterdir():
        file.unlink()
    assert queue.lease() is None
    (letter,) = queue.admin.dead()
    assert "is not in the store" in letter.reason
