"""Codecs that wrap others. They compress, encrypt or store a payload elsewhere, and they refuse
foreign payloads alike.
"""

from __future__ import annotations

import os
import random
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from headrace import ConfigurationError, RetryLater
from headrace._codecs import around, offloaded
from headrace._codecs.encrypted import NONCE_BYTES, PAYLOADS_PER_KEY, Key
from headrace._model.codec import BytesCodec, inline, keeper, untyped
from headrace.codecs import Compressed, DirectoryStore, Encrypted, JSONCodec, Offloaded
from headrace.errors import CodecError
from tests.support.facts import each

zstandard = pytest.importorskip("zstandard")
pytest.importorskip("cryptography")

KEYS = {"new": b"n" * 32, "old": b"o" * 32}
TEXT = b"the same words again and again, " * 200
NOISE = random.Random(5).randbytes(3000)


class Shelf:
    """A store in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.away: Exception | None = None

    def put(self, key: str, data: bytes) -> None:
        self._look()
        self.kept[key] = data

    def get(self, key: str) -> bytes:
        self._look()
        return self.kept[key]

    def delete(self, key: str) -> None:
        self._look()
        self.kept.pop(key, None)

    def _look(self) -> None:
        if self.away is not None:
            raise self.away


# -- compressed ------------------------------------------------------------------------------------


def test_what_is_large_is_one_zstd_frame() -> None:
    codec = Compressed()
    data = codec.encode(TEXT)
    assert len(data) < 100
    assert zstandard.decompress(data) == TEXT
    assert codec.decode(data) == TEXT


@each("payload", [b"", b"short", TEXT[:511], NOISE])
def test_what_does_not_get_smaller_is_stored_as_it_is(payload: bytes) -> None:
    codec = Compressed()
    assert codec.encode(payload) == payload
    assert codec.decode(payload) == payload


def test_what_was_enqueued_before_is_read() -> None:
    assert Compressed(JSONCodec()).decode(b'{"a":1}') == {"a": 1}


@each("payload", [around.MAGIC, zstandard.compress(b"x"), around.MAGIC + NOISE])
def test_what_looks_like_a_frame_becomes_one(payload: bytes) -> None:
    codec = Compressed()
    assert codec.encode(payload) != payload
    assert codec.decode(codec.encode(payload)) == payload


def test_level_and_threshold() -> None:
    assert Compressed(threshold=0).encode(b"a" * 100) != b"a" * 100
    assert Compressed(threshold=101).encode(b"a" * 100) == b"a" * 100
    words = b" ".join(random.Random(5).choices([b"%x" % n for n in range(999)], k=20_000))
    assert len(Compressed(level=19).encode(words)) < len(Compressed(level=1).encode(words))
    for wrong in ({"level": 0}, {"level": 23}, {"threshold": -1}, {"most": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Compressed(**wrong)


def test_a_frame_may_not_become_anything() -> None:
    """A frame that decompresses to more than `most` is refused, whether or not it declares its
    size."""
    codec = Compressed(most=1 << 20)
    says = zstandard.ZstdCompressor().compress(bytes(1 << 21))
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 21))
    for bomb in (says, silent):
        with pytest.raises(CodecError, match="decompresses to more than most=1,048,576 bytes"):
            codec.decode(bomb)
    small = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    assert codec.decode(small) == TEXT
    with pytest.raises(CodecError, match="payload has 1,048,577 bytes, above most=1,048,576"):
        codec.encode(bytes((1 << 20) + 1))


@each("wrong", [around.MAGIC, around.MAGIC + b"x" * 50, zstandard.compress(TEXT)[:-1],
                                   zstandard.compress(TEXT) + b"more"])  # fmt: skip
def test_broken_frames(wrong: bytes) -> None:
    with pytest.raises(CodecError, match="not a zstd frame"):
        Compressed().decode(wrong)


# -- encrypted -------------------------------------------------------------------------------------


def test_the_construction_is_the_published_one() -> None:
    """The codec passes the test vectors of c2sp.org/XAES-256-GCM. Any implementation of it can read
    headrace's payloads.
    """
    nonce, plain = b"ABCDEFGHIJKLMNOPQRSTUVWX", b"XAES-256-GCM"
    first, second = Key(bytes([1]) * 32), Key(bytes([3]) * 32)
    assert (
        first.encrypt(nonce, plain, b"").hex()
        == "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"
    )
    sealed = second.encrypt(nonce, plain, b"c2sp.org/XAES-256-GCM")
    assert sealed.hex() == "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"
    assert second.decrypt(nonce, sealed, b"c2sp.org/XAES-256-GCM") == plain


def test_the_envelope() -> None:
    data = Encrypted(None, KEYS).encode(b"secret")
    assert data[:8] == b"HRE2\x03new"
    assert len(data) == 8 + 24 + len(b"secret") + 16
    assert Key(KEYS["new"]).decrypt(data[8:32], data[32:], data[:8] + b"\0") == b"secret"


def test_nonces_do_not_repeat() -> None:
    key = Key(KEYS["new"])
    drawn = [key.nonce() for _ in range(2 * PAYLOADS_PER_KEY)]
    assert len(set(drawn)) == len(drawn)
    assert len({nonce[:12] for nonce in drawn}) == 2
    assert {len(nonce) for nonce in drawn} == {NONCE_BYTES}


def test_rotation() -> None:
    """Every program knows the new key before it encrypts, and the old one until no payload has its
    name."""
    before, during = (
        Encrypted(None, {"old": KEYS["old"]}),
        Encrypted(None, {"old": KEYS["old"], "new": KEYS["new"]}),
    )
    turned, after = Encrypted(None, KEYS), Encrypted(None, {"new": KEYS["new"]})
    assert before.decode(during.encode(b"x")) == turned.decode(before.encode(b"x")) == b"x"
    assert after.decode(turned.encode(b"x")) == during.decode(turned.encode(b"x")) == b"x"
    with pytest.raises(
        CodecError, match="payload is encrypted by key 'new', which is not among those given: 'old'"
    ):
        before.decode(turned.encode(b"x"))


def test_no_message_holds_a_key_or_a_payload() -> None:
    secret = b"attack at dawn"
    key, other = os.urandom(32), os.urandom(32)

    class Talkative:
        def encode(self, payload: bytes) -> bytes:
            return payload

        def decode(self, data: bytes) -> bytes:
            raise LookupError(f"no such thing: {data!r}")

    codec = Encrypted(Talkative(), {"k": key})
    data = codec.around(BytesCodec()).encode(secret)  # type: ignore[attr-defined]
    said = [repr(codec)]
    for reader in (codec, Encrypted(None, {"k": other}), Encrypted(None, {"m": other})):
        with pytest.raises(CodecError) as raised:
            reader.decode(data)
        assert raised.value.__suppress_context__ or raised.value.__context__ is None
        said.append(str(raised.value))
    assert "'k'" in said[1]
    assert "'k'" in said[2]
    for text in said:
        assert secret.decode() not in text
        assert not any(
            part in text for one in (key, other) for part in (one.hex(), repr(one)[2:-1])
        )


def test_a_payload_opens_in_its_place_only() -> None:
    """The namespace, the queue and the job's id are authenticated. A flow's payload opens anywhere
    in its group."""
    codec = Encrypted(Compressed(), KEYS)
    for wrapped in (codec, Compressed(codec)):
        queue = wrapped.bound("g/a")
        sealed, named, moved = (
            queue.encode(b"x"),
            queue.of("1").encode(b"x"),
            queue.grouped().encode(b"x"),
        )
        for reader in (queue, queue.of("1"), queue.untyped, queue.inline):
            assert reader.decode(sealed) == b"x"
        assert queue.of("1").decode(named) == b"x"
        assert wrapped.bound("g/b").of("2").decode(moved) == b"x"
        for reader in (wrapped.bound("g/b"), wrapped.bound("g/a", "other"), wrapped):
            with pytest.raises(CodecError):
                reader.decode(sealed)
        for reader in (wrapped.bound("g/b").of("1"), queue.of("2"), queue):
            with pytest.raises(CodecError):
                reader.decode(named)
        with pytest.raises(CodecError, match="another queue"):
            wrapped.bound("h/a").decode(moved)


def test_the_old_form_opens_if_asked() -> None:
    head = b"HRE1\x03new"
    key = Key(KEYS["new"])
    nonce = key.nonce()
    data = head + nonce + key.encrypt(nonce, b"x", head)
    with pytest.raises(CodecError, match="unbound=True"):
        Encrypted(None, KEYS).bound("q").decode(data)
    reader = Encrypted(None, KEYS, unbound=True).bound("q")
    assert reader.decode(data) == b"x"
    assert reader.encode(b"x").startswith(b"HRE2")


@given(st.data())
def test_any_change_is_found(draw: Any) -> None:
    codec = Encrypted(None, KEYS)
    data = bytearray(codec.encode(b"payload"))
    place = draw.draw(st.integers(0, len(data) - 1))
    data[place] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(CodecError):
        codec.decode(bytes(data))


@each(
    ("data", "says"),
    [(b"", "not encrypted"), (b"plain", "not encrypted"), (b"HRE", "cut short"),
     (b"HRE9\x03new" + bytes(40), "unknown form"),
     (b"HRE2", "cut short"), (b"HRE2\xff", "cut short"),
     (b"HRE2\x03new" + bytes(39), "cut short"), (b"HRE2\x03new" + bytes(40), "does not decrypt by key 'new'"),
     (b"HRE2\x01\xff" + bytes(40), r"encrypted by key '\\\\xff'")],
)  # fmt: skip
def test_what_nobody_encrypted(data: bytes, says: str) -> None:
    with pytest.raises(CodecError, match=says):
        Encrypted(None, KEYS).decode(data)


@each(
    ("keys", "error"),
    [({}, TypeError), (None, TypeError), ([b"x" * 32], TypeError), ({"a": b"short"}, ValueError),
     ({"a": "x" * 32}, ValueError), ({"": b"x" * 32}, ValueError), ({"a" * 256: b"x" * 32}, ValueError),
     ({5: b"x" * 32}, ValueError), ({"a\n": b"x" * 32}, ValueError), ({"\ud800": b"x" * 32}, ValueError)],
)  # fmt: skip
def test_keys_are_checked(keys: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="keys") as raised:
        Encrypted(None, keys)
    assert "short" not in str(raised.value)
    assert "x" * 32 not in str(raised.value)


# -- offloaded -------------------------------------------------------------------------------------


def test_what_is_large_is_elsewhere() -> None:
    shelf = Shelf()
    codec = Offloaded(None, shelf, over=100)
    assert codec.encode(b"x" * 100) == b"x" * 100
    assert not shelf.kept
    ticket = codec.encode(b"x" * 101)
    assert len(ticket) == 4 + 32 + 32
    assert list(shelf.kept.values()) == [b"x" * 101]
    assert codec.decode(ticket) == b"x" * 101
    assert codec.encode(b"x" * 101) != ticket  # each has its own: the first to be done deletes it
    assert Offloaded(JSONCodec(), Shelf()).over == 65536


def test_what_looks_like_a_ticket_is_kept_elsewhere() -> None:
    shelf = Shelf()
    codec = Offloaded(None, shelf)
    for payload in (offloaded.MAGIC, offloaded.MAGIC + bytes(32) + b"key"):
        assert codec.decode(codec.encode(payload)) == payload
    assert len(shelf.kept) == 2


def test_what_is_not_there_and_what_was_changed() -> None:
    shelf = Shelf()
    codec = Offloaded(None, shelf, over=0)
    ticket = codec.encode(b"payload")
    (key,) = shelf.kept
    shelf.kept[key] = b"another"
    with pytest.raises(CodecError, match=f"payload {key} in the store is not what was put there"):
        codec.decode(ticket)
    codec.discard(key)
    with pytest.raises(CodecError, match=f"payload {key} is not in the store"):
        codec.decode(ticket)
    for wrong in (
        b"HRO1",
        b"HRO1" + bytes(32),
        b"HRO1" + bytes(32) + b"../../etc/passwd",
        b"HRO1" + bytes(32) + b"\xff",
    ):
        with pytest.raises(CodecError, match="not a ticket"):
            codec.decode(wrong)


def test_a_store_that_is_away_is_waited_for() -> None:
    shelf = Shelf()
    codec = Offloaded(None, shelf, over=0)
    ticket = codec.encode(b"payload")
    shelf.away = OSError("no route")
    encrypted = Encrypted(codec, KEYS)
    sealed = encrypted.around(BytesCodec()).encode(ticket)
    for reader, data in (codec, ticket), (Compressed(codec), ticket), (encrypted, sealed):
        with pytest.raises(RetryLater, match="could not be fetched: OSError: no route") as raised:
            reader.decode(data)
        assert raised.value.delay == 5.0
    with pytest.raises(OSError, match="no route"):
        codec.encode(b"payload")
    codec.discard("a")  # left to be swept


@each("store", [None, "directory", DirectoryStore, object()])
def test_what_is_no_store(store: Any) -> None:
    with pytest.raises(TypeError, match=r"store must have put\(\), get\(\) and delete\(\)"):
        Offloaded(None, store)


# -- one around another ----------------------------------------------------------------------------


def stacks(shelf: Shelf) -> list[Any]:
    return [
        Encrypted(Compressed(JSONCodec(list[str])), KEYS),
        Offloaded(Encrypted(Compressed(JSONCodec(list[str]), threshold=0), KEYS), shelf, over=10),
        Encrypted(Offloaded(Compressed(JSONCodec(list[str])), shelf, over=10), KEYS),
        Compressed(Offloaded(JSONCodec(list[str]), shelf, over=10)),
    ]


@given(st.lists(st.text(), max_size=5))
@example(["words " * 1000])
def test_they_compose(payload: list[str]) -> None:
    for codec in stacks(Shelf()):
        assert codec.decode(codec.encode(payload)) == payload
        assert untyped(codec).decode(untyped(codec).encode({"a": 1})) == {"a": 1}
        with pytest.raises(TypeError, match="payload must be"):
            codec.encode("text")


@given(
    st.binary(max_size=60)
    | st.builds(
        lambda magic, rest: magic + rest,
        st.sampled_from([around.MAGIC, b"HRE1", b"HRE2\x03new", b"HRO1", b"HRO1" + bytes(32)]),
        st.binary(max_size=100),
    )
)
def test_hostile_bytes_end_in_one_kind_of_error(data: bytes) -> None:
    shelf = Shelf()
    for codec in (Compressed(), Encrypted(None, KEYS), Offloaded(None, shelf), *stacks(shelf)):
        with_json = not isinstance(codec.codec, BytesCodec)
        try:
            codec.decode(data)
        except CodecError:
            pass
        except ValueError:  # JSON's own
            assert with_json


def test_tickets_are_found_through_others() -> None:
    shelf = Shelf()
    plain, whole, around, squeezed = stacks(shelf)
    assert keeper(plain) is None
    for codec in (whole, around, squeezed):
        kept = keeper(codec)
        assert kept is not None
        ticket = kept.ticket(codec.encode(["a" * 100]))
        assert ticket is not None
        assert ticket in shelf.kept
        kept.discard(ticket)
        assert not shelf.kept
    assert keeper(squeezed).ticket(b"[]") is None  # type: ignore[union-attr]


def test_what_many_jobs_share_stays_in_the_queue() -> None:
    shelf = Shelf()
    for codec in stacks(shelf)[1:]:
        data = inline(codec).encode(["a" * 1000])
        assert not shelf.kept
        assert inline(codec).decode(data) == ["a" * 1000]
        if not isinstance(codec, Offloaded):
            assert codec.decode(data) == ["a" * 1000]
    assert not shelf.kept


def test_equal_payloads_become_equal_bytes_or_not() -> None:
    assert Compressed(JSONCodec()).repeatable
    assert not Encrypted(None, KEYS).repeatable
    assert not Compressed(Offloaded(None, Shelf())).repeatable


def test_reprs_hold_no_secrets() -> None:
    shelf = DirectoryStore("/tmp/payloads")
    codec = Encrypted(Compressed(Offloaded(JSONCodec(int), shelf)), KEYS)
    expected = "Offloaded(JSONCodec(int), DirectoryStore('/tmp/payloads'), over=65536)"
    assert repr(codec) == f"Encrypted(Compressed({expected}, level=3), keys=['new', 'old'])"


@each("make", [Compressed, partial(Encrypted, keys=KEYS)])
def test_an_inner_codec_that_gives_no_bytes(make: Any) -> None:
    class Wrong:
        def encode(self, payload: Any) -> Any:
            return bytearray(b"x") if payload else "text"

        def decode(self, data: bytes) -> Any:
            return data

    assert make(Wrong()).decode(make(Wrong()).encode(True)) == b"x"
    with pytest.raises(CodecError, match="gave a str, not bytes"):
        make(Wrong()).encode(False)
    with pytest.raises(TypeError, match="codec must be an object"):
        make(Wrong)


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [("zstandard", Compressed, "Compressed is an extra: .*zstd"),
     ("cryptography.exceptions", lambda: Encrypted(None, KEYS), "Encrypted is an extra: .*encryption")],
)  # fmt: skip
def test_the_extra_is_named(
    module: str, make: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ConfigurationError, match=extra):
        make()
