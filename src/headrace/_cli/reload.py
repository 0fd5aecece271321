"""`headrace work --reload`: notices that a module in the working directory has changed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import ConfigurationError, without_extra


@contextmanager
def changes() -> Generator[socket.socket, None, None]:
    """Yield a socket that delivers a byte whenever modules below the working directory have changed."""
    try:
        from watchfiles import PythonFilter, watch
    except ModuleNotFoundError:
        raise ConfigurationError(without_extra("--reload", "reload")) from None
    ours, theirs = socket.socketpair()
    over = threading.Event()

    def follow() -> None:
        for _ in watch(Path.cwd(), watch_filter=PythonFilter(), stop_event=over, raise_interrupt=False):
            theirs.send(b"1")

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield ours
    finally:
        over.set()
        thread.join()
        ours.close()
        theirs.close()
