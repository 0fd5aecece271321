"""The forks of this process, those that handlers start above all: none has our sockets, and none our signals.

A fork copies all descriptors and all that handles signals. So `multiprocessing` could end none of its processes: they
took SIGTERM for the worker's, and told it by the descriptor that wakes its event loop. And a connection, or the port of
the metrics, would stay open as long as a child lives that knows nothing of it. What a child executes (`subprocess`,
spawn) has neither, by Python itself. A connection that another thread is opening at that moment is copied.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

from headrace._net.base.sockets import socket_of

STOPS: dict[int, Any] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}  # and what handles them by default
_connections: WeakSet[Any] = WeakSet()
_sockets: WeakSet[socket.socket] = WeakSet()
_runs = 0  # of workers that handle the signals of this process
_masked = threading.local()  # by the thread that forks: `before` is its mask of signals


def withhold(connection: Any) -> None:
    """Keep the socket of a connection of redis-py's from all children, whenever it is open.

    A connection that was given up may know no more of its socket, which its event loop closes a moment later.
    """
    _connections.add(connection)
    sock = socket_of(connection)
    sock = getattr(sock, "_sock", sock)  # asyncio shows another object
    if isinstance(sock, socket.socket):
        withhold_socket(sock)


def withhold_socket(sock: socket.socket) -> None:
    """Keep a socket from all children."""
    _sockets.add(sock)


@contextmanager
def handling_signals() -> Generator[None, None, None]:
    """Handle the signals that stop a worker; children handle them by default."""
    global _runs  # noqa: PLW0603 - the signals of a process are one
    _runs += 1
    try:
        yield
    finally:
        _runs -= 1


def _before() -> None:
    """Hold back signals: one for a child that handles them as we do yet would be taken for ours."""
    _masked.before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS) if _runs else None


def _unmask() -> None:
    if (before := _masked.before) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_child() -> None:
    global _runs  # noqa: PLW0603
    if _runs:
        with suppress(ValueError):  # not in the main interpreter
            for number, handler in STOPS.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
        _runs = 0
    _let_go()
    try:
        _unmask()
    except KeyboardInterrupt:  # it came at once; what is raised in here, Python ignores
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _let_go() -> None:
    """Let the descriptors of our sockets lead nowhere. Closed, their numbers could be given away, and closed again."""
    numbers = {number for one in [*_sockets, *map(_open_socket, _connections)] if (number := _number(one)) >= 0}
    _sockets.clear()
    _connections.clear()
    if not numbers:
        return
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in numbers:
            os.dup2(nowhere, number, inheritable=False)
        os.close(nowhere)


def _open_socket(connection: Any) -> Any:
    """Return the socket of a connection; `None` if it is closed, or about to be, when its number may be another's."""
    writer = getattr(connection, "_writer", None)
    return None if writer is not None and writer.is_closing() else socket_of(connection)


def _number(sock: Any) -> int:
    with suppress(OSError, ValueError):
        return -1 if sock is None else int(sock.fileno())
    return -1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_unmask, after_in_child=_in_child)
