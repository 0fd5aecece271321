"""A fork server imports this as it starts. It loads the handlers' modules, so that a child has them
at once, as it is a copy.

If they have started threads, or opened sockets, copies could not use these. Then the server starts
again without them, and each child loads them itself.
"""

from __future__ import annotations

import gc
import json
import os
import stat
import sys
import threading
from contextlib import suppress
from importlib import import_module
from multiprocessing import process, spawn
from pathlib import Path
from typing import Any

from headrace._isolation.program import Program, forget_databases, set_up_django

LOADS = "HEADRACE_LOADS"  # in the environment of a fork server: what it loads
OWN = (
    "headrace._isolation.nursery",
    "headrace._isolation.child",
    "headrace._isolation.steps",
    "headrace._net.sync.steps",
)


def loads(program: Program) -> str:
    main: Any = sys.modules["__main__"]
    name: str | None = getattr(getattr(main, "__spec__", None), "name", None)
    path: str | None = getattr(main, "__file__", None)
    prepared: dict[str, Any] = {"sys_path": sys.path, "sys_argv": sys.argv}
    if name is not None:
        prepared["init_main_from_name"] = name
    elif path is not None:  # spelled as `multiprocessing` does, which compares it
        prepared["init_main_from_path"] = os.path.normpath(Path.cwd() / path)
    data = {
        "modules": sorted({place.module for place in program.places.values()} - {"__main__"}),
        "prepare": prepared,
        "django": program.django,
    }
    return json.dumps(data)


def _sockets() -> int:
    found = 0
    for entry in Path("/dev/fd").iterdir():
        with suppress(OSError):  # of the listing itself
            found += stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode)
    return found


def _threads() -> int:
    with suppress(OSError):  # of C libraries, too, where the system tells
        return len(list(Path("/proc/self/task").iterdir()))
    return threading.active_count()


def _load(data: dict[str, Any]) -> None:
    for name in OWN:
        import_module(name)
    before = _threads(), _sockets()
    current: Any = process.current_process()
    current._inheriting = True  # noqa: SLF001 - a module that starts its worker then is refused
    try:
        spawn.prepare(data["prepare"])
        if data["django"]:
            set_up_django()
        for name in data["modules"]:
            import_module(name)
        if data["django"]:
            forget_databases()
    except BaseException:  # a child says it, as it imports the module itself
        data["modules"] = []
    finally:
        del current._inheriting  # noqa: SLF001
    if (_threads(), _sockets()) != before:
        os.environ[LOADS] = ""
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the same program again
    gc.collect()
    gc.freeze()  # the pages of what was loaded stay shared with the children


if given := os.environ.pop(LOADS, ""):
    _load(json.loads(given))
