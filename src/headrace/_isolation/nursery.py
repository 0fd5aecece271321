"""The fork server of one queue's children. It has loaded their handlers, so a child is ready soon.

The fork server of `multiprocessing` is one for the whole program, which may have uses of its own.
It also repeats for each child the preparation that all children share.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
from contextlib import suppress
from functools import partial
from multiprocessing import process, spawn, util

from headrace import _forks
from headrace._isolation.link import NUMBER, Broken, Link
from headrace._isolation.program import Program
from headrace._net.base.children import withhold_socket

SERVER = "headrace._isolation.warm"  # only it imports this: a parent of threads needs no event loop


class Nursery:
    def __init__(self, name: str, program: Program, *, loads: bool) -> None:
        self._described = partial(_described, name, program)
        self._loads = loads
        self._lock = _forks.lock()
        self._ended = False
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket

    def start(self) -> tuple[int, int, socket.socket]:
        """Fork a child. Return its process, the file that tells its end, and our end of its link.
        Raises `Broken` or `OSError`.
        """
        with self._lock:
            if self._server is None or self._server.poll() is not None:
                self._launch()
            # A fork waits: its copies of the others' ends would hide from us that they have gone.
            with _forks.unforked:
                ours, theirs = socket.socketpair()
                told, teller = os.pipe()
                with suppress(OSError):  # it has ended, and tells nothing
                    socket.send_fds(self._control, [b"1"], [theirs.fileno(), teller])
                theirs.close()
                os.close(teller)
        if (pid := heard(told)) < 0:
            os.close(told)
            ours.close()
            raise Broken("the fork server has ended, or could not fork")
        return pid, told, ours

    def end(self) -> None:
        self._ended = True
        self._kill()

    def _kill(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._control.close()

    def _launch(self) -> None:
        described = self._described()
        for loads in (True, False)[not self._loads :]:
            self._kill()
            # A fork waits: its copies would hide from us that the server has gone, or keep that
            # alive.
            with _forks.unforked:
                self._control, theirs = socket.socketpair()
                withhold_socket(self._control)
                self._server = subprocess.Popen(  # noqa: S603 - our own program
                    [
                        spawn.get_executable(),
                        *vars(util)["_args_from_interpreter_flags"](),
                        "-c",
                        f"from {SERVER} import serve; serve({theirs.fileno()}, loads={loads})",
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C in a terminal is for us, who decide
                )
                theirs.close()
            if self._ended:  # it came too late to end this one, too
                self._kill()
            link = Link(self._control)
            # it ends if the modules that it has loaded end it, or are of no use in a copy
            with suppress(Broken):
                link.send({}, described)
                link.receive()
                return
        raise Broken("the fork server has ended")


def heard(told: int) -> int:
    # if the fork server has ended, its children have, too
    data = os.read(told, NUMBER.size)
    return int(NUMBER.unpack(data)[0]) if data else -signal.SIGKILL


def _described(name: str, program: Program) -> list[bytes]:
    key = bytes(process.current_process().authkey)  # whose own class refuses to be pickled
    prepared = {**spawn.get_preparation_data(name), "authkey": key}
    return [pickle.dumps((prepared, program.django)), pickle.dumps(program)]
