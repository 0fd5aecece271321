"""Stores of large payloads: the protocol, and a directory."""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from headrace._model.checks import seconds

KEY = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}")  # of a store: safe as a file's name, and in a URL


class Store(Protocol):
    """A store of payloads by key: a directory, a bucket. Called from any thread; it may block."""

    def put(self, key: str, data: bytes, /) -> object:
        """Keep *data* durably; from its return on, `get` finds it from everywhere."""
        ...

    def get(self, key: str, /) -> bytes:
        """Return the stored bytes. Raises `KeyError` if there are none; anything else means: try again later."""
        ...

    def delete(self, key: str, /) -> object:
        """Delete the stored bytes, if there are any."""
        ...


class DirectoryStore:
    """A store in a directory that producers and workers share: a file a payload, written whole or not at all.

    The directory is made by the first `put`, for this user alone (0700), and its files are 0600. In an existing
    directory that its group may write, files are 0660, for programs of several users. `sweep` removes abandoned files.
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
        """Write a file: complete and on disk before it has its name."""
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
        """Make a file that this user alone may read; and the group, where it may write the directory."""
        made = os.open(path, flags, 0o600)
        if self.path.stat().st_mode & 0o020:
            os.chmod(path, 0o660)  # noqa: PTH101 - whatever the umask
        return made

    def _keep_names(self) -> None:
        """Bring the names of files to disk, where the system can."""
        with suppress(OSError):  # Windows opens no directories
            directory = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def get(self, key: str, /) -> bytes:
        """Read a file, which makes it new again. Raises `KeyError` without it, `OSError` without the directory."""
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
        """Remove the files that were neither written nor read for so many seconds; return their number.

        Give more time than any job may wait or be kept as a dead letter: its payload would be lost.
        """
        before = time.time() - seconds("older_than", older_than, zero=False)
        swept = 0
        for file in self.path.iterdir() if self.path.is_dir() else ():
            with suppress(FileNotFoundError):  # another sweeps, too, or its job is done
                if file.is_file() and file.stat().st_mtime < before:
                    file.unlink()
                    swept += 1
        return swept
