"""Forks of this process, which handlers make. No fork keeps our sockets or our signal handlers.

A fork copies all descriptors and signal handlers. `multiprocessing` could then not end its
processes: they took SIGTERM for the worker's signal, and passed it on through the descriptor that
wakes the worker's event loop. A connection, or the port of the metrics, would stay open as long as
a child that does not use it. Python itself protects programs that a child executes (`subprocess`,
spawn). A connection that another thread is opening during the fork is copied.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from headrace._net.base.sockets import socket_of

STOPS: dict[int, Any] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}  # and their default handlers
_connections: WeakSet[Any] = WeakSet()
_sockets: WeakKeyDictionary[socket.socket, tuple[int, os.stat_result]] = WeakKeyDictionary()
"""Each socket with its descriptor and the facts of its file. A socket that is being closed hides
its descriptor before that is free.
"""
_runs = 0  # workers that handle the signals of this process
_masked = threading.local()  # for the thread that forks: `before` is its signal mask


def withhold(connection: Any) -> None:
    """Keep the socket of a redis-py connection from all children, whenever it is open.

    An abandoned connection may have no socket any more. The event loop closes that socket a moment
    later.
    """
    _connections.add(connection)
    sock = socket_of(connection)
    sock = getattr(sock, "_sock", sock)  # asyncio shows another object
    if isinstance(sock, socket.socket):
        withhold_socket(sock)


def withhold_socket(sock: socket.socket) -> None:
    with suppress(OSError, ValueError):  # it is closed already
        _sockets[sock] = (sock.fileno(), os.fstat(sock.fileno()))


@contextmanager
def handling_signals() -> Generator[None, None, None]:
    """Handle the signals that stop a worker. Children handle them by default."""
    global _runs  # noqa: PLW0603 - the signals of a process are one
    _runs += 1
    try:
        yield
    finally:
        _runs -= 1


def _before() -> None:
    """Block signals. The child still has our handlers, and would handle its own signals as ours."""
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
    # the signal was there already, and Python ignores exceptions in this callback
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _let_go() -> None:
    """Redirect our sockets' descriptors to the null device.

    Closed numbers could be reused, and closed again.
    """
    if not (_connections or _sockets):
        return
    numbers = {number for one in map(_open_socket, _connections) if (number := _number(one)) >= 0}
    for number, before in list(_sockets.values()):
        with suppress(OSError):
            # its number may belong to another file by now
            if os.path.samestat(os.fstat(number), before):
                numbers.add(number)
    _sockets.clear()
    _connections.clear()
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in numbers:
            os.dup2(nowhere, number, inheritable=False)
        os.close(nowhere)


def _open_socket(connection: Any) -> Any:
    """Return a connection's socket, or `None` if it is closed or closing.

    The number of a closing socket may belong to another file.
    """
    writer = getattr(connection, "_writer", None)
    return None if writer is not None and writer.is_closing() else socket_of(connection)


def _number(sock: Any) -> int:
    with suppress(OSError, ValueError):
        return -1 if sock is None else int(sock.fileno())
    return -1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_unmask, after_in_child=_in_child)
