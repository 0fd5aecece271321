"""`Encrypted` makes payloads that neither the server nor its other clients can read or change.

The envelope: `HRE`, a version byte, one byte with the length of the key's name, that name in UTF-8,
24 bytes of nonce, and the ciphertext of XAES-256-GCM (c2sp.org/XAES-256-GCM) with its tag of 16
bytes. Everything before the nonce is authenticated, and so is the payload's place, which the
version byte names:

- `2`: the namespace and the queue
- `3`: the namespace, the queue and the job's id
- `4`: the namespace and the group, for the jobs of a flow, which the server moves from queue to
  queue
- `1`: no place. Nothing is written so any more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import Any, cast, overload

from headrace._codecs.around import Around
from headrace._model.codec import Codec, bound, grouped, of_job
from headrace._model.job import T
from headrace.errors import CodecError, RetryLater, requiring

MAGIC = b"HRE"
UNBOUND = b"1"  # version bytes
QUEUE = b"2"
JOB = b"3"
GROUP = b"4"
HEAD_BYTES = len(MAGIC) + 1
KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 24, 16
PAYLOADS_PER_KEY = 4096  # that share half a nonce, and with it a derived key


class Key:
    """A key of 256 bits for AES-GCM with nonces of 192 (XAES-256-GCM).

    Plain AES-GCM has nonces of 96 bits. Random nonces are safe for 2^32 payloads per key, which a
    busy queue reaches in days. Here the first half of the nonce selects a derived key, which serves
    for a few thousand payloads.
    """

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._gcm = AESGCM
        self._ecb = Cipher(algorithms.AES256(key), modes.ECB())  # noqa: S305 - a block at a time, as AES-CMAC is made of
        doubled = int.from_bytes(self._blocks(bytes(16)), "big") << 1
        self._mask = (doubled ^ 0x87 if doubled >> 128 else doubled) & (1 << 128) - 1
        self._derived = lru_cache(maxsize=64)(self._derive)
        self._drawn = count()
        # also for a thread that comes before the first renewal
        self._half = os.urandom(NONCE_BYTES // 2)

    def _blocks(self, data: bytes) -> bytes:
        return self._ecb.encryptor().update(data)

    def _derive(self, half: bytes) -> Any:
        blocks = [
            int.from_bytes(bytes([0, number, 0x58, 0]) + half, "big") ^ self._mask
            for number in (1, 2)
        ]
        return self._gcm(self._blocks(b"".join(block.to_bytes(16, "big") for block in blocks)))

    def nonce(self) -> bytes:
        """Draw a random nonce. Its first half is used again for some more nonces, as it takes time
        to derive a key."""
        if next(self._drawn) % PAYLOADS_PER_KEY == 0:
            self._half = os.urandom(NONCE_BYTES // 2)
        return self._half + os.urandom(NONCE_BYTES // 2)

    def encrypt(self, nonce: bytes, data: bytes, known: bytes) -> bytes:
        return cast("bytes", self._derived(nonce[:12]).encrypt(nonce[12:], data, known))

    def decrypt(self, nonce: bytes, data: bytes, known: bytes) -> bytes:
        """Decrypt *data*. Raises if *data*, *known* or the key differs from the encryption's."""
        return cast("bytes", self._derived(nonce[:12]).decrypt(nonce[12:], data, known))


def checked(keys: object) -> dict[str, bytes]:
    """Check the given keys. No error message shows a key."""
    if not isinstance(keys, Mapping) or not keys:
        raise TypeError(
            "keys must be a mapping with a key at least: {name: 32 bytes}, the one that encrypts first"
        )
    for name, key in cast("Mapping[object, object]", keys).items():
        if (
            not isinstance(name, str)
            or not 0 < len(name.encode("utf-8", "replace")) < 256
            or not name.isprintable()
        ):
            raise ValueError(
                f"keys: a name must be 1-255 bytes of printable text, not {name!r:.100}"
            )
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            size = f"{len(key)} bytes" if isinstance(key, bytes) else f"a {type(key).__name__}"
            raise ValueError(
                f"keys: key {name!r} must be 32 bytes, such as secrets.token_bytes(32), not {size}"
            )
    return dict(cast("Mapping[str, bytes]", keys))


class Encrypted(Around[T]):
    """Another codec's bytes, encrypted and authenticated by AES-256-GCM (extra `encryption`).

    *keys* are 32 bytes each, by name. The first encrypts, and all decrypt. To rotate, add the new
    key last everywhere, then put it first, and remove the old one when no job has its name any
    more. Ids, headers and queue names are not encrypted.

    A payload opens only in the queue and namespace that it was sealed for. If its producer gave the
    job an id, it opens only as the payload of that job. With *unbound* the codec also opens
    payloads of the old form, which are bound to nothing.
    """

    @overload
    def __init__(
        self: Encrypted[bytes], codec: None, keys: Mapping[str, bytes], *, unbound: bool = False
    ) -> None: ...
    @overload
    def __init__(
        self, codec: Codec[T], keys: Mapping[str, bytes], *, unbound: bool = False
    ) -> None: ...
    def __init__(
        self, codec: Codec[Any] | None, keys: Mapping[str, bytes], *, unbound: bool = False
    ) -> None:
        with requiring("Encrypted", "encryption"):
            import cryptography.exceptions
        super().__init__(codec)  # type: ignore[arg-type]
        self._keys = {name.encode(): Key(key) for name, key in checked(keys).items()}
        self._first = next(iter(self._keys))
        self._invalid: Any = cryptography.exceptions.InvalidTag
        self._unbound = unbound
        # by version byte: the namespace, a zero byte, and the queue, job or group
        self._places = {QUEUE: b"\0"}
        self._seals = QUEUE

    def __repr__(self) -> str:
        return f"Encrypted({self.codec!r}, keys={[name.decode() for name in self._keys]})"

    def around(self, codec: Codec[Any]) -> Codec[Any]:
        return self._with(codec)

    @property
    def binds(self) -> bool:
        return True

    def bound(self, queue: str, namespace: str = "headrace") -> Encrypted[T]:
        """Bind the codec to one queue. Its payloads open in no other queue, and foreign payloads
        do not open here.
        """
        made = cast("Encrypted[T]", self._with(bound(self.codec, queue, namespace)))
        group = queue.partition("/")[0]
        places = {QUEUE: f"{namespace}\0{queue}".encode(), GROUP: f"{namespace}\0{group}".encode()}
        made._places = places  # noqa: SLF001
        return made

    def of(self, id: str) -> Encrypted[T]:
        made = cast("Encrypted[T]", self._with(of_job(self.codec, id)))
        place = self._places[QUEUE] + b"\0" + id.encode("utf-8", "surrogateescape")
        made._places = {**self._places, JOB: place}  # noqa: SLF001
        made._seals = JOB if self._seals == QUEUE else self._seals  # noqa: SLF001
        return made

    def grouped(self) -> Encrypted[T]:
        made = cast("Encrypted[T]", self._with(grouped(self.codec)))
        made._seals = GROUP  # noqa: SLF001
        return made

    @property
    def repeatable(self) -> bool:
        """False, because equal payloads get different bytes by their nonces."""
        return False

    def encode(self, payload: T, /) -> bytes:
        """Encode by the inner codec, and encrypt by the first key. Raises the inner codec's
        error."""
        data = self.inner(payload)
        head = MAGIC + self._seals + bytes([len(self._first)]) + self._first
        key = self._keys[self._first]
        nonce = key.nonce()
        return head + nonce + key.encrypt(nonce, data, head + self._places[self._seals])

    def decode(self, data: bytes, /) -> T:
        """Decrypt, and decode by the inner codec. Raises `CodecError` that names the key, never the
        payload."""
        plain = self.opened(data)
        try:
            return self.codec.decode(plain)
        except RetryLater:
            raise
        except Exception as error:  # its words may quote the payload
            name = self._parts(data)[0].decode()
            kind = type(error).__name__
            raise CodecError(
                f"payload decrypts by key {name!r}, but does not decode: {kind}"
            ) from None

    def opened(self, data: bytes) -> bytes:
        name, head, nonce, sealed = self._parts(data)
        shown = name.decode("utf-8", "backslashreplace")
        key = self._keys.get(name)
        if key is None:
            known = ", ".join(repr(one.decode()) for one in self._keys)
            raise CodecError(
                f"payload is encrypted by key {shown!r}, which is not among those given: {known}"
            )
        try:
            return key.decrypt(nonce, sealed, head + self._sealed_for(data))
        except self._invalid:
            raise CodecError(
                f"payload does not decrypt by key {shown!r}: changed, of another queue or job, or another key of that "
                "name"
            ) from None

    def _sealed_for(self, data: bytes) -> bytes:
        version = data[len(MAGIC) : HEAD_BYTES]
        if version == UNBOUND:
            if self._unbound:
                return b""
            raise CodecError(
                "payload is encrypted, but bound to no queue: Encrypted(…, unbound=True) opens it"
            )
        place = self._places.get(version)
        if place is None:
            kind = {JOB: "to a job's id", GROUP: "to a flow"}.get(version)
            raise CodecError(
                "payload is encrypted in an unknown form"
                if kind is None
                else f"payload is bound {kind}"
            )
        return place

    def _parts(self, data: bytes) -> tuple[bytes, bytes, bytes, bytes]:
        if not data.startswith(MAGIC):
            raise CodecError("payload is not encrypted")
        start = HEAD_BYTES + 1 + (data[HEAD_BYTES] if len(data) > HEAD_BYTES else 0)
        if len(data) < start + NONCE_BYTES + TAG_BYTES:
            raise CodecError("encrypted payload is cut short")
        body = start + NONCE_BYTES
        return data[HEAD_BYTES + 1 : start], data[:start], data[start:body], data[body:]
