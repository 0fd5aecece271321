"""The messages between a parent and a child, over a pair of sockets.

A message is a head, which is JSON, and any number of parts, which are bytes, such as payloads. It
is written by one call of the system, and a short one is read by one.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from headrace import _forks

Head = dict[str, Any]
Message = tuple[Head, list[bytes]]
LENGTH = struct.Struct("<I")
NUMBER = struct.Struct("<q")  # of a process, or its exit code
TIMEVAL = struct.Struct("@ll")
READ_BYTES = 1 << 16  # bytes that are read at once
HIGH = 64  # file numbers of a child's link begin here: a handler may close the low ones
_written = json.JSONEncoder(separators=(",", ":")).encode
_parsed = json.JSONDecoder().raw_decode  # which `json.loads` reaches by three more calls


class Broken(EOFError):
    """The other process has gone, or sent something that is no message."""


class Link:
    """One end of the connection. Several threads may send; one receives."""

    def __init__(self, end: socket.socket, patience: float = 0.0) -> None:
        self._socket = end
        self._sending = _forks.lock()
        self._rest = b""  # read, and not returned yet
        end.setblocking(True)
        if patience:  # by the kernel: a timeout of Python's is one more call of the system
            end.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEVAL.pack(0, int(patience * 1e6))
            )

    def send(self, head: Head, parts: Sequence[bytes] = ()) -> None:
        """Send a message. Raises `Broken`."""
        first = _written(head).encode()
        pieces = [b"", LENGTH.pack(len(first)), first]
        for part in parts:
            pieces += (LENGTH.pack(len(part)), part)
        pieces[0] = LENGTH.pack(sum(map(len, pieces)))
        try:
            with self._sending:
                self._socket.sendall(b"".join(pieces))
        except OSError as error:
            raise Broken(str(error)) from None

    def receive(self) -> Message | None:
        """Wait for a message, and with *patience* for so many seconds. Raises `Broken`."""
        data: bytes | bytearray = self._rest
        try:
            while len(data) < LENGTH.size or len(data) < LENGTH.size + LENGTH.unpack_from(data)[0]:
                more = self._socket.recv(self._missing(data) if data else READ_BYTES)
                if not more:
                    raise Broken("the connection was closed")
                if data:
                    data = bytearray(data) if isinstance(data, bytes) else data
                    data += more  # in place, as a message may be large
                else:
                    data = more
        except BlockingIOError:
            self._rest = bytes(data)
            return None
        except OSError as error:
            raise Broken(str(error)) from None
        end = LENGTH.size + LENGTH.unpack_from(data)[0]
        self._rest = bytes(data[end:])
        return _read(bytes(data), end)

    def _missing(self, data: bytes | bytearray) -> int:
        """Return how many bytes to read of a message that has begun to arrive."""
        if len(data) < LENGTH.size:
            return READ_BYTES
        return max(READ_BYTES, int(LENGTH.unpack_from(data)[0]) + LENGTH.size - len(data))

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _read(data: bytes, end: int) -> Message:
    parts: list[bytes] = []
    at = LENGTH.size
    try:
        while at < end:
            (size,) = LENGTH.unpack_from(data, at)
            at += LENGTH.size
            parts.append(data[at : at + size])
            at += size
        head, read = _parsed(parts[0].decode("ascii"))
    except (ValueError, IndexError, struct.error) as error:
        raise Broken(str(error)) from None
    if at != end or read != len(parts[0]) or not parts[0].startswith(b"{"):
        raise Broken("no message")
    return head, parts[1:]


def out_of_reach(end: socket.socket) -> socket.socket:
    """Move a connection to a high file number."""
    import fcntl

    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH))
