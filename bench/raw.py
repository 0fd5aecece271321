"""The baseline. Commands are packed by hand over one blocking socket, and hiredis parses replies,
without any safety.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self

import hiredis

DEPTH = 500  # commands in one pipeline, entries in one read


def pack(*args: bytes | str | int) -> bytes:
    """Pack a command."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        value = arg if isinstance(arg, bytes) else str(arg).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(value), value))
    return b"".join(parts)


class Raw:
    """One connection to a unix socket."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._reader = hiredis.Reader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, packed: bytes, replies: int) -> list[Any]:
        """Send packed commands and return the replies."""
        self._socket.sendall(packed)
        got: list[Any] = []
        while True:
            reply = self._reader.gets()
            while reply is not False:
                if isinstance(reply, hiredis.ReplyError):
                    raise reply
                got.append(reply)
                if len(got) == replies:
                    return got
                reply = self._reader.gets()
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the server hung up")
            self._reader.feed(data)

    def run(self, *args: bytes | str | int) -> Any:
        """Run a command."""
        return self.ask(pack(*args), 1)[0]

    def enqueue(self, stream: str, payloads: Sequence[bytes]) -> list[bytes]:
        """Send `XADD stream * data payload` for each, with `DEPTH` in flight, and return the entry
        IDs."""
        key = stream.encode()
        head = b"*5\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$1\r\n*\r\n$4\r\ndata\r\n" % (len(key), key)
        ids: list[bytes] = []
        for start in range(0, len(payloads), DEPTH):
            some = payloads[start : start + DEPTH]
            ids += self.ask(
                b"".join([b"%b$%d\r\n%b\r\n" % (head, len(p), p) for p in some]), len(some)
            )
        return ids

    def drain(self, stream: str, group: str) -> int:
        """Send `XREADGROUP COUNT 500`, then `XACK` and `XDEL` of all entries until none is left,
        and return their number.
        """
        done = 0
        while entries := self.read(stream, group):
            self.settle(stream, group, [entry for entry, _ in entries])
            done += len(entries)
        return done

    async def drain_by_tasks(
        self, stream: str, group: str, handle: Callable[[bytes], Coroutine[Any, Any, object]]
    ) -> int:
        """Drain with an asyncio task for each entry, which handles its payload."""
        done, loop = 0, asyncio.get_running_loop()
        while entries := self.read(stream, group):
            tasks = [asyncio.Task(handle(fields[1]), loop=loop) for _, fields in entries]
            for task in tasks:
                await task
            self.settle(stream, group, [entry for entry, _ in entries])
            done += len(entries)
        return done

    def read(self, stream: str, group: str) -> list[Any]:
        """Send `XREADGROUP COUNT 500` and return the entries."""
        reply = self.run("XREADGROUP", "GROUP", group, "c", "COUNT", DEPTH, "STREAMS", stream, ">")
        found: list[Any] = reply[0][1] if reply else []
        return found

    def settle(self, stream: str, group: str, entries: Sequence[bytes]) -> None:
        """Send `XACK` and `XDEL`, each of all *entries*."""
        tail = b"".join([b"$%d\r\n%b\r\n" % (len(e), e) for e in entries])
        ack = pack("XACK", stream, group)[4:], pack("XDEL", stream)[4:]
        self.ask(
            b"*%d\r\n%b%b*%d\r\n%b%b"
            % (len(entries) + 3, ack[0], tail, len(entries) + 2, ack[1], tail),
            2,
        )
