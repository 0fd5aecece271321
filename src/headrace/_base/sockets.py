"""The socket of a connection, whichever library opened it, and its end from another thread."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any


def socket_of(connection: Any) -> Any:
    """Return the socket of an open connection of either colour."""
    writer = getattr(connection, "_writer", None)
    return getattr(connection, "_sock", None) if writer is None else writer.get_extra_info("socket")


def cut(connection: Any) -> None:
    """End a connection that another thread uses: its next read or write finds that it has ended, and it closes it.

    If this thread closed it, a new socket might get its number before the other waits for that, and be waited for.
    """
    with suppress(OSError, ValueError, AttributeError):
        ours = socket_of(connection)
        with socket.socket(fileno=os.dup(ours.fileno())) as twin:  # whatever TLS or an event loop made of it
            twin.shutdown(socket.SHUT_RDWR)
