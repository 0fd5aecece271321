"""Stores of large payloads, and `Offloaded`. The queue has only a ticket for each payload (a
claim check).

A ticket is `HRO1`, the SHA-256 of the stored bytes, and their key in the store, in ASCII.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, overload

from headrace._codecs.around import Around
from headrace._model.checks import count, seconds
from headrace._model.codec import Codec
from headrace._model.job import T
from headrace.errors import CodecError, RetryLater, describe_error

# of a store: safe as a file's name, and in a URL
KEY = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}")


class Store(Protocol):
    """A store of payloads by key, such as a directory or a bucket. Any thread may call it, and
    it may block.
    """

    def put(self, key: str, data: bytes, /) -> object:
        """Store *data* durably. After the return, `get` finds it from everywhere."""
        ...

    def get(self, key: str, /) -> bytes:
        """Return the stored bytes. Raises `KeyError` if there are none. Any other error means
        that the caller should try again later.
        """
        ...

    def delete(self, key: str, /) -> object:
        """Delete the stored bytes, if there are any."""
        ...


class DirectoryStore:
    """A store in a directory that producers and workers share. Each payload is a file, written
    whole or not at all.

    The directory is made by the first `put`, for this user alone (0700), and its files are 0600. In
    an existing directory that its group may write, files are 0660, for programs of several users.
    `sweep` removes abandoned files.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self.path)!r})"

    def _file(self, key: object) -> Path:
        if not isinstance(key, str) or not KEY.fullmatch(key):
            raise ValueError(
                f"key must be 1-200 letters, digits, '.', '_', '-', and begin with no '.': not {key!r:.100}"
            )
        return self.path / key

    def put(self, key: str, data: bytes, /) -> None:
        """Write a file that is complete and on disk before it gets its name."""
        file = self._file(key)
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        half = self.path / f".{secrets.token_hex(8)}.half"
        try:
            with open(half, "xb", opener=self._private) as writing:
                writing.write(data)
                writing.flush()
                os.fsync(writing.fileno())
            half.replace(file)
        except BaseException:
            half.unlink(missing_ok=True)
            raise
        self._keep_names()

    def _private(self, path: str, flags: int) -> int:
        """Make a file that only this user may read, or also the group, if it may write the
        directory."""
        made = os.open(path, flags, 0o600)
        if self.path.stat().st_mode & 0o020:
            os.chmod(path, 0o660)  # noqa: PTH101 - whatever the umask
        return made

    def _keep_names(self) -> None:
        with suppress(OSError):  # Windows opens no directories
            directory = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def get(self, key: str, /) -> bytes:
        """Read a file, and renew its age. Raises `KeyError` if it is missing, `OSError` if the
        directory is."""
        file = self._file(key)
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            if not self.path.is_dir():
                raise
            raise KeyError(key) from None
        with suppress(OSError):  # it may be another user's
            os.utime(file)
        return data

    def delete(self, key: str, /) -> None:
        """Remove a file, if it is there."""
        self._file(key).unlink(missing_ok=True)

    def sweep(self, older_than: float | timedelta) -> int:
        """Remove files that were neither written nor read for *older_than* seconds, and return
        their number.

        Give more time than any job may wait or be kept as a dead letter. Otherwise its payload
        would be lost.
        """
        before = time.time() - seconds("older_than", older_than, zero=False)
        swept = 0
        for file in self.path.iterdir() if self.path.is_dir() else ():
            with suppress(FileNotFoundError):  # another sweeps, too, or its job is done
                if file.is_file() and file.stat().st_mtime < before:
                    file.unlink()
                    swept += 1
        return swept


MAGIC = b"HRO1"
# the position of a payload's key, after its digest
KEY_AT = len(MAGIC) + hashlib.sha256().digest_size
# seconds after which a job is tried again whose payload its store could not give
STORE_RETRY_S = 5.0


class Offloaded(Around[T]):
    """Keeps another codec's bytes in a store if there are more than *over* bytes. The queue then
    has a ticket for them.

    A payload is in the store before its job is in the queue. The client that completes the job
    deletes it. Payloads of jobs that were cancelled, purged, trimmed, or never enqueued stay until
    a sweep. While the store is away, its jobs wait. A payload that is not there any more makes a
    dead letter. Results, schedules' payloads and follow-ups in other queues stay in Redis.
    """

    @overload
    def __init__(
        self: Offloaded[bytes], codec: None, store: Store, *, over: int = 65536
    ) -> None: ...
    @overload
    def __init__(self, codec: Codec[T], store: Store, *, over: int = 65536) -> None: ...
    def __init__(self, codec: Codec[Any] | None, store: Store, *, over: int = 65536) -> None:
        super().__init__(codec)  # type: ignore[arg-type]
        if isinstance(store, type) or not all(
            callable(getattr(store, verb, None)) for verb in ("put", "get", "delete")
        ):
            raise TypeError(
                f"store must have put(), get() and delete(), as DirectoryStore(path), not {store!r:.100}"
            )
        self.store = store
        self.over = count("over", over, least=0)

    def __repr__(self) -> str:
        return f"Offloaded({self.codec!r}, {self.store!r}, over={self.over})"

    def around(self, codec: Codec[Any]) -> Codec[Any]:
        """Return *codec*. Shared payloads stay in Redis, because the first job to end would
        delete them from the store.
        """
        return codec

    @property
    def repeatable(self) -> bool:
        """False, because equal payloads get different keys."""
        return False

    @property
    def keeps(self) -> bool:
        return True

    def encode(self, payload: T, /) -> bytes:
        """Encode by the inner codec, and put large payloads into the store. Raises the error of
        either."""
        data = self.inner(payload)
        if len(data) <= self.over and not data.startswith(MAGIC):
            return data
        key = secrets.token_hex(16)
        self.store.put(key, data)
        return MAGIC + hashlib.sha256(data).digest() + key.encode()

    def opened(self, data: bytes) -> bytes:
        """Fetch the payload of a ticket. Raises `CodecError` if it is not there, `RetryLater` if
        the store is away."""
        if not data.startswith(MAGIC):
            return data
        key = self.ticket(data)
        if key is None:
            raise CodecError("not a ticket of a store")
        try:
            content = self.store.get(key)
        except KeyError:
            raise CodecError(
                f"payload {key} is not in the store: it was swept, or this is another store"
            ) from None
        except Exception as error:
            raise RetryLater(
                STORE_RETRY_S, f"payload {key} could not be fetched: {describe_error(error)}"
            ) from error
        if hashlib.sha256(content).digest() != data[len(MAGIC) : KEY_AT]:
            raise CodecError(f"payload {key} in the store is not what was put there")
        return content

    def ticket(self, data: bytes) -> str | None:
        key = data[KEY_AT:].decode("ascii", "replace") if data.startswith(MAGIC) else ""
        return key if KEY.fullmatch(key) else None

    def discard(self, ticket: str) -> None:
        """Delete the payload of a finished job. If that fails, a sweep deletes it later."""
        with suppress(Exception):
            self.store.delete(ticket)
