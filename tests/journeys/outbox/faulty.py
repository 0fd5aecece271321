"""Run a program that is killed at its n-th step, before or after a statement of SQL or a commit."""

from __future__ import annotations

import itertools
import os
import runpy
import signal
import sys

from sqlalchemy import Engine, event

at, module, *sys.argv[1:] = int(sys.argv[1]), *sys.argv[2:]
steps = itertools.count(1)


def step(*_: object) -> None:
    if next(steps) == at:
        os.kill(os.getpid(), signal.SIGKILL)


for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
    event.listen(Engine, name, step)
runpy.run_module(module, run_name="__main__", alter_sys=True)
