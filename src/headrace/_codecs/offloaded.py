"""`Offloaded`: large payloads in a store, and only a ticket for each in the queue (a claim check).

The ticket: `HRO1`, the SHA-256 of the stored bytes, and their key in the store, in ASCII.
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from typing import Any, overload

from headrace._codecs.around import Around
from headrace._codecs.store import KEY, Store
from headrace._model.checks import count
from headrace._model.codec import Codec
from headrace._model.job import T
from headrace.errors import CodecError, RetryLater, describe_error

MAGIC = b"HRO1"
KEY_AT = len(MAGIC) + hashlib.sha256().digest_size  # the position of a payload's key, after its digest
STORE_RETRY_S = 5.0  # seconds after which a job is tried again whose payload its store could not give


class Offloaded(Around[T]):
    """Another codec's bytes, in a store where they are more than *over*; the queue has a ticket for them.

    A payload is in the store before its job is in the queue, and is deleted by the client that completes the job.
    Payloads of jobs that were cancelled, purged, trimmed, or never enqueued stay: sweep them. While the store is away,
    jobs wait for it; a payload that is not there any more makes a dead letter. Results, schedules' payloads and
    follow-ups in other queues stay in Redis.
    """

    @overload
    def __init__(self: Offloaded[bytes], codec: None, store: Store, *, over: int = 65536) -> None: ...
    @overload
    def __init__(self, codec: Codec[T], store: Store, *, over: int = 65536) -> None: ...
    def __init__(self, codec: Codec[Any] | None, store: Store, *, over: int = 65536) -> None:
        super().__init__(codec)  # type: ignore[arg-type]
        if isinstance(store, type) or not all(
            callable(getattr(store, verb, None)) for verb in ("put", "get", "delete")
        ):
            raise TypeError(f"store must have put(), get() and delete(), as DirectoryStore(path), not {store!r:.100}")
        self.store = store
        self.over = count("over", over, least=0)

    def __repr__(self) -> str:
        return f"Offloaded({self.codec!r}, {self.store!r}, over={self.over})"

    def around(self, codec: Codec[Any]) -> Codec[Any]:
        """Return *codec*: such payloads stay in Redis, as the first job to end would delete a shared payload."""
        return codec

    @property
    def repeatable(self) -> bool:
        """Whether equal payloads become equal bytes: each has a key of its own."""
        return False

    @property
    def keeps(self) -> bool:
        """Whether payloads are kept elsewhere: they are."""
        return True

    def encode(self, payload: T, /) -> bytes:
        """Encode by the inner codec, and put large payloads into the store. Raises the error of either."""
        data = self.inner(payload)
        if len(data) <= self.over and not data.startswith(MAGIC):
            return data
        key = secrets.token_hex(16)
        self.store.put(key, data)
        return MAGIC + hashlib.sha256(data).digest() + key.encode()

    def opened(self, data: bytes) -> bytes:
        """Fetch the payload of a ticket. Raises `CodecError` if it is not there, `RetryLater` if the store is away."""
        if not data.startswith(MAGIC):
            return data
        key = self.ticket(data)
        if key is None:
            raise CodecError("not a ticket of a store")
        try:
            content = self.store.get(key)
        except KeyError:
            raise CodecError(f"payload {key} is not in the store: it was swept, or this is another store") from None
        except Exception as error:
            raise RetryLater(STORE_RETRY_S, f"payload {key} could not be fetched: {describe_error(error)}") from error
        if hashlib.sha256(content).digest() != data[len(MAGIC) : KEY_AT]:
            raise CodecError(f"payload {key} in the store is not what was put there")
        return content

    def ticket(self, data: bytes) -> str | None:
        """Return the key of a payload in the store."""
        key = data[KEY_AT:].decode("ascii", "replace") if data.startswith(MAGIC) else ""
        return key if KEY.fullmatch(key) else None

    def discard(self, ticket: str) -> None:
        """Delete the payload of a job that is done; one that can't be deleted is left to be swept."""
        with suppress(Exception):
            self.store.delete(ticket)
