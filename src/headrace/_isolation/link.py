"""The messages between a parent and a child.

A message is a head, which is JSON, and any number of parts, which are bytes, such as payloads.
"""

from __future__ import annotations

import json
import os
import select
import struct
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, cast

from headrace import _forks

Head = dict[str, Any]
LENGTH = struct.Struct("<I")
HIGH = 64  # file numbers of a child's link begin here: a handler may close the low ones


class Broken(EOFError):
    """The other process has gone, or sent something that is no message."""


class Link:
    """One end of the connection. Several threads may send; one receives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = _forks.lock()
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)

    def send(self, head: Head, parts: Sequence[bytes] = ()) -> None:
        """Send a message. Raises `Broken`."""
        every = [json.dumps(head).encode(), *parts]
        data = b"".join(piece for part in every for piece in (LENGTH.pack(len(part)), part))
        try:
            with self._sending:
                self._connection.send_bytes(data)
        except (OSError, ValueError) as error:
            raise Broken(str(error)) from None

    def arrived(self, seconds: float) -> bool:
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def receive(self) -> tuple[Head, list[bytes]]:
        """Wait for a message. Raises `Broken`."""
        try:
            data = self._connection.recv_bytes()
            parts: list[bytes] = []
            at = 0
            while at < len(data):
                (size,) = LENGTH.unpack_from(data, at)
                at += LENGTH.size
                parts.append(data[at : at + size])
                at += size
            head = json.loads(parts[0])
        except (OSError, EOFError, ValueError, IndexError, struct.error) as error:
            raise Broken(str(error)) from None
        if not isinstance(head, dict):
            raise Broken("a message without a head")
        return cast("Head", head), parts[1:]

    def closed(self) -> None:
        """Wait until the other end is closed. Messages do not end this."""
        hang_up = select.poll()
        hang_up.register(self._connection.fileno(), 0)
        hang_up.poll()

    def close(self) -> None:
        with suppress(OSError):
            self._connection.close()


def out_of_reach(connection: Connection) -> Connection:
    """Move a connection to a high file number."""
    import fcntl

    number = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH)
    moved = Connection(number)
    connection.close()
    os.set_inheritable(number, False)
    return moved
