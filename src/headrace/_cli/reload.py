"""`headrace work --reload`: notices that a module in the working directory has changed."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import ConfigurationError, without_extra

NAMES_AT_MOST = 3  # of modules that are told


@contextmanager
def changes() -> Generator[socket.socket, None, None]:
    """Yield a socket that delivers the names of modules below the working directory that have changed, a line each."""
    try:
        from watchfiles import PythonFilter, watch
    except ModuleNotFoundError:
        raise ConfigurationError(without_extra("--reload", "reload")) from None
    ours, theirs = socket.socketpair()
    over = threading.Event()

    def follow() -> None:
        here = Path.cwd()
        for some in watch(here, watch_filter=PythonFilter(), stop_event=over, raise_interrupt=False):
            names = sorted(os.path.relpath(path, here) for _, path in some)
            theirs.send(os.fsencode("".join(f"{name}\n" for name in names[:NAMES_AT_MOST])))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield ours
    finally:
        over.set()
        thread.join()
        ours.close()
        theirs.close()
