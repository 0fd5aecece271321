"""The program of a fork server. It loads the handlers' modules, and a child is a copy of it.

If they have started threads, or opened sockets, copies could not use these. Then the server ends,
and the next one leaves it to each child to load the modules.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import select
import signal
import socket
import stat
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from multiprocessing import process, spawn, util
from pathlib import Path
from typing import Any

from headrace._isolation.child import run
from headrace._isolation.link import NUMBER, READ_BYTES, Link
from headrace._isolation.program import Loaded, Program, served


def _read(described: Sequence[bytes]) -> Loaded:
    current: Any = process.current_process()
    current._inheriting = True  # noqa: SLF001 - a module that starts its worker then is refused
    try:
        prepared, django = pickle.loads(described[0])  # noqa: S301 - of our parent
        spawn.prepare(prepared)
        if django:
            import_module("django").setup()
            for logger in (logging.root, *logging.root.manager.loggerDict.values()):
                if isinstance(logger, logging.Logger):  # our parent has the handlers, too
                    logger.handlers.clear()
        program: Program = pickle.loads(described[1])  # noqa: S301
        functions = {kind: served(place.found()) for kind, place in program.places.items()}
    finally:
        del current._inheriting  # noqa: SLF001
    if not logging.root.handlers:  # else a module has set up logging itself
        logging.root.setLevel(program.log_level)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return program, functions


def _unshared() -> tuple[int, int]:
    sockets = 0
    for entry in Path("/dev/fd").iterdir():
        with suppress(OSError):  # of the listing itself
            sockets += stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode)
    with suppress(OSError):  # of C libraries, too, where the system tells
        return sockets, len(list(Path("/proc/self/task").iterdir()))
    return sockets, threading.active_count()


def serve(number: int, *, loads: bool) -> None:
    """Fork a child for each request, until our parent has gone. Then kill them."""
    control = socket.socket(fileno=number)
    link = Link(control)
    _, described = link.receive() or ({}, [])
    import_module("headrace._net.sync.steps")  # which few handlers need, but at once
    load = cache(partial(_read, described))
    if loads:
        before = _unshared()
        with suppress(BaseException):  # a child says it, as it loads them itself
            if load()[0].django:
                # so that no copy of this process has them
                import_module("django.db").connections.close_all()
        if _unshared() != before:
            os._exit(0)
        gc.collect()
        gc.freeze()  # the children share the pages of the loaded modules
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    handlers = {
        signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda _number, _frame: None),
        signal.SIGPIPE: signal.signal(signal.SIGPIPE, signal.SIG_IGN),
    }
    signal.set_wakeup_fd(wake)
    tellers: dict[int, int] = {}
    link.send({"is": "ready"})
    with suppress(OSError, ValueError):  # there is no request, as our parent has gone
        while True:
            ready, _, _ = select.select([number, wakes], [], [])
            if wakes in ready:
                os.read(wakes, READ_BYTES)
                _reap(tellers)
                continue
            _, (end, teller), _, _ = socket.recv_fds(control, 1, 2)
            try:
                pid = os.fork()
            except OSError:  # the system has no process to spare, and the others go on
                os.close(end)
                os.close(teller)
                continue
            if not pid:
                os.setpgid(0, 0)
                signal.set_wakeup_fd(-1)
                for caught, handler in handlers.items():
                    signal.signal(caught, handler)
                for unused in (number, wakes, wake, teller, *tellers.values()):
                    os.close(unused)
                _live(partial(run, socket.socket(fileno=end), load))
            os.close(end)
            os.setpgid(pid, pid)  # before it is known: it is killed with its descendants
            tellers[pid] = teller
            _tell(teller, pid)
    for pid in tellers:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def _live(child: Callable[[], None]) -> None:
    code = 1
    try:
        child()
        vars(util)["_exit_function"]()  # as a child of `multiprocessing` ends
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        vars(util)["_flush_std_streams"]()
        os._exit(code)


def _reap(tellers: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            if (teller := tellers.pop(pid, None)) is not None:
                _tell(teller, os.waitstatus_to_exitcode(status))
                os.close(teller)


def _tell(teller: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for this child, and the others go on
        os.write(teller, NUMBER.pack(number))
