"""The socket of a connection of any library. Its timeout can be set, and another thread can end
it."""

from __future__ import annotations

import codecs
import os
import socket
import struct
from contextlib import suppress
from ssl import SSLSocket
from typing import Any

# else the first connection imports it, and a fork meanwhile breaks it in the child
codecs.lookup("idna")


def socket_of(connection: Any) -> Any:
    writer = getattr(connection, "_writer", None)
    return getattr(connection, "_sock", None) if writer is None else writer.get_extra_info("socket")


def set_timeout(sock: Any, seconds: float) -> None:
    """Limit each wait of a socket.

    The kernel limits plain sockets, which then raise `BlockingIOError`. With Python's own timeout a
    thread would sleep in `poll`, and wake later than in `recv`, which took a third of a short call.
    TLS would repeat a read that the kernel has ended. Sockets of other libraries (gevent) may not
    use the kernel's timeout.
    """
    if not isinstance(sock, SSLSocket):
        whole = int(seconds)
        bound = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
        with suppress(OSError):  # a system with another form of this option
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)
            sock.settimeout(None)
            if os.get_blocking(sock.fileno()):
                return
    sock.settimeout(seconds)


def cut(connection: Any) -> None:
    """End a connection that another thread uses. That thread's next read or write fails, and closes
    it.

    If this thread closed it, a new socket might get its number, and the other thread might wait for
    that one.
    """
    with suppress(OSError, ValueError, AttributeError):
        ours = socket_of(connection)
        # whatever TLS or an event loop has wrapped around it
        with socket.socket(fileno=os.dup(ours.fileno())) as twin:
            twin.shutdown(socket.SHUT_RDWR)
