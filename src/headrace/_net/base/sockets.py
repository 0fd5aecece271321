"""The socket of a connection, whichever library opened it: how long it waits, and its end from another thread."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from ssl import SSLSocket
from typing import Any


def socket_of(connection: Any) -> Any:
    """Return the socket of an open connection of either colour."""
    writer = getattr(connection, "_writer", None)
    return getattr(connection, "_sock", None) if writer is None else writer.get_extra_info("socket")


def set_timeout(sock: Any, seconds: float) -> None:
    """Bound each wait of a socket: by the kernel, if it is a plain one, where it raises `BlockingIOError`.

    A socket that Python bounds is waited for by `poll`, and a thread that sleeps there wakes later than one in `recv`:
    of a short call that took a third. TLS repeats what the kernel has ended; what another library than Python's has
    made of sockets (gevent) may not leave it to the kernel at all.
    """
    if not isinstance(sock, SSLSocket):
        whole = int(seconds)
        bound = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
        with suppress(OSError):  # a system that knows it by another form
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)
            sock.settimeout(None)
            if os.get_blocking(sock.fileno()):
                return
    sock.settimeout(seconds)


def cut(connection: Any) -> None:
    """End a connection that another thread uses: its next read or write finds that it has ended, and it closes it.

    If this thread closed it, a new socket might get its number before the other waits for that, and be waited for.
    """
    with suppress(OSError, ValueError, AttributeError):
        ours = socket_of(connection)
        with socket.socket(fileno=os.dup(ours.fileno())) as twin:  # whatever TLS or an event loop made of it
            twin.shutdown(socket.SHUT_RDWR)
