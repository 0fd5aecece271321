"""Forks. Each lock of the library is in one list, from which a child process makes new locks."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import headrace
from headrace import _forks

SOURCES = Path(headrace.__file__).parent
LOCKS = {
    "Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "allocate_lock", "LockType",
}  # fmt: skip
ELSEWHERE = {
    "_forks.py": "the list",
    "_api/sync/colour.py": "the type of an event: none is made",
    "sql/_sync/colour.py": "the type of an event: none is made",
    "_net/sync/colour.py": "the types of a condition and an event: none is made",
    "_net/sync/pool.py": "a thread that waits for a round trip made it: it forks before, or after",
    "_engine/threads.py": "a bell, on which a worker's own thread sleeps: there is none in a child",
}


def made(source: str) -> set[str]:
    """Return the locks that a module makes by itself, by the names of their kinds."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("threading", "_thread"):
            found |= {one.name for one in node.names} & LOCKS
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            if (
                isinstance(of, ast.Name)
                and of.id in ("threading", "_thread")
                and node.func.attr in LOCKS
            ):
                found.add(node.func.attr)
    return found


def test_every_lock_is_in_the_list() -> None:
    """Programs of the command line are left out, because they fork nothing that uses them."""
    paths = [path for path in SOURCES.rglob("*.py") if "cli" not in path.parts]
    by_themselves = {
        str(path.relative_to(SOURCES)) for path in paths if made(path.read_text("utf-8"))
    }
    assert by_themselves <= ELSEWHERE.keys()
    assert (
        made("import threading\nx = threading.Lock()")
        == made("from threading import Lock")
        == {"Lock"}
    )


def test_every_cached_property_is_in_the_list() -> None:
    """Before Python 3.12 each cached property has a lock. `attrs` makes its own for classes with
    slots, without a lock.
    """
    names = [module.name for module in pkgutil.walk_packages(headrace.__path__, "headrace.")]
    # Django imports the last two
    alone = ("headrace.__main__", "headrace.django.", "headrace.django._child")
    modules = [importlib.import_module(name) for name in names if not name.startswith(alone)]
    classes = {one for module in modules for one in vars(module).values() if inspect.isclass(one)}
    cached = {
        f"{one.__name__}.{name}": value
        for one in classes
        if one.__module__.partition(".")[0] == "headrace"
        for name, value in vars(one).items()
        if isinstance(value, functools.cached_property)
    }
    assert {"Driver._executor", "Queue._waiters"} <= cached.keys()
    assert [
        name for name, value in cached.items() if not isinstance(value, _forks.cached_property)
    ] == []


HELD = """
import os, signal, sys, threading
from headrace import Queue, Worker, _forks

queue = Queue("q", url=sys.argv[1], timeout=5)
cluster = Queue("q", url=sys.argv[1].replace("redis:", "redis+cluster:"), timeout=5)
some = [queue._executor, cluster._executor, queue._waiters]
locks, taken = list(_forks._LOCKS), threading.Event()

def hold():
    for one in locks:
        if hasattr(one, "acquire"):
            one.acquire()
        else:
            one._cond.acquire()
    taken.set()
    threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
taken.wait()
child = os.fork()
if not child:
    signal.alarm(60)
    for one in locks:
        free = one.acquire(False) if hasattr(one, "acquire") else one._cond.acquire(False)
        if not free:
            os._exit(3)
        one.release() if hasattr(one, "release") else one._cond.release()
    os._exit(0)
print(len(locks), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


def test_a_child_finds_every_lock_free() -> None:
    """Another thread of its parent holds all of them."""
    ended = subprocess.run(
        [sys.executable, "-c", HELD, "redis://127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    number, status = map(int, ended.stdout.split())
    assert number >= 10
    assert status == 0


FIRST = """
import os, signal, sys, threading
from headrace import Queue
from headrace._net.sync import driver

begun, make = threading.Event(), driver.executor_of

def slow(*args, **kwargs):  # as an embedded server that starts
    begun.set()
    threading.Event().wait()

driver.executor_of = slow
threading.Thread(target=lambda: Queue("a", url=sys.argv[1])._executor, daemon=True).start()
begun.wait()
child = os.fork()
if not child:
    signal.alarm(60)
    driver.executor_of = make
    os._exit(0 if Queue("b", url=sys.argv[1])._executor else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


def test_a_child_waits_for_no_first_call_of_its_parent() -> None:
    """Another thread of its parent was in the first call of a queue."""
    ended = subprocess.run(
        [sys.executable, "-c", FIRST, "redis://127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ended.stdout.strip() == "0"


SEARCHED = """
import os, signal, sys
from redis import exceptions as errors
from headrace._forks import event
from headrace._net.base.cluster import MapSearch
from headrace._net.sync.cluster import executor_of

executor = executor_of("redis+cluster://127.0.0.1:1")
executor._search = MapSearch(executor.slots, event(), os.getpid())  # its thread asks for the map
child = os.fork()
if not child:
    signal.alarm(60)
    try:
        executor._refresh(2.0)
    except errors.TimeoutError:
        os._exit(3)
    except errors.ConnectionError:  # it has asked for itself
        os._exit(0)
    os._exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


def test_a_child_waits_for_no_search_of_its_parent() -> None:
    """A thread learns the map, and a fork does not copy it."""
    ended = subprocess.run(
        [sys.executable, "-c", SEARCHED], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout.strip() == "0"
