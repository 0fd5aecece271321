"""The fork server of one queue's children. It has loaded their handlers, so a child is ready soon.

The fork server of `multiprocessing` is one for the whole program, which may have uses of its own.
"""

from __future__ import annotations

import io
import os
import signal
import threading
from importlib import import_module
from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
from typing import TYPE_CHECKING, Any

from headrace import _forks
from headrace._isolation import warm
from headrace._isolation.program import Program

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess as ForkServerProcess
else:
    from multiprocessing.context import ForkServerProcess

# type checkers do not know these two
_spawning: Any = import_module("multiprocessing.context").set_spawning_popen
_close: Any = vars(util)["close_fds"]
_ENVIRON = _forks.lock()
_starting = threading.local()  # the nursery of the process that this thread starts


class Nursery(forkserver.ForkServer):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self._loads = warm.loads(program)
        self.set_forkserver_preload([warm.__name__])

    def ensure_running(self) -> None:
        with _ENVIRON:
            os.environ[warm.LOADS] = self._loads
            try:
                super().ensure_running()
            finally:
                del os.environ[warm.LOADS]

    def end(self) -> None:
        server: Any = self  # type checkers do not know its names
        if server._forkserver_pid is not None:  # noqa: SLF001
            # a fork of the program may have a copy of the file that keeps it alive
            os.kill(server._forkserver_pid, signal.SIGTERM)  # noqa: SLF001
            server._stop()  # noqa: SLF001 - there is no public way

    def start(self, process: Child) -> None:
        _starting.nursery = self
        process.start()


class _Popen(popen_forkserver.Popen):
    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        # as the base does, with our server
        data = spawn.get_preparation_data(process_obj._name)  # noqa: SLF001 - as the base
        buffer = io.BytesIO()
        _spawning(self)
        try:
            reduction.dump(data, buffer)
            reduction.dump(process_obj, buffer)
        finally:
            _spawning(None)
        self.sentinel, end = _starting.nursery.connect_to_new_process(self._fds)
        kept = os.dup(end)  # the child sees our death by it
        self.finalizer = util.Finalize(self, _close, (kept, self.sentinel))
        with os.fdopen(end, "wb") as file:
            file.write(buffer.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class Child(ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - the name of the base
        return _Popen(process_obj)
