"""The locks of the library, which are renewed in a forked child, and the one that a fork waits for.

A fork copies only the forking thread, but all locks as they are. A lock that another thread holds
would never be released in the child. The standard library renews its own locks, of `logging` and
`threading`, in the same way.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from functools import cached_property
else:
    import functools

    class cached_property(functools.cached_property):  # noqa: N801 - by its name, type checkers know it
        """A value that is computed once. Before Python 3.12, one lock serves all instances of a
        class."""

        def __init__(self, function: Any) -> None:
            super().__init__(function)
            if hasattr(self, "lock"):
                _listed(self.lock)


__all__ = ["cached_property", "condition", "event", "lock", "rlock", "unforked"]

L = TypeVar("L")
unforked = threading.RLock()
"""Held for moments in which a fork by another thread waits, because the child would get files that
stay open."""
_LOCKS: WeakSet[Any] = WeakSet()  # all locks that exist


def lock() -> threading.Lock:
    return _listed(threading.Lock())


def rlock() -> threading.RLock:
    """Make a lock that its thread may take again, for example in a signal handler."""
    return _listed(threading.RLock())


def condition() -> threading.Condition:
    """Make a condition. In a child no thread waits for it."""
    return _listed(threading.Condition())


def event() -> threading.Event:
    """Make an event. In a child it is set if it was set in the parent."""
    return _listed(threading.Event())


def _listed(made: L) -> L:
    _LOCKS.add(made)
    return made


def _renew() -> None:
    made: list[Any] = [unforked, *_LOCKS]
    for one in made:
        one._at_fork_reinit()  # noqa: SLF001 - as the standard library does


os.register_at_fork(
    before=unforked.acquire, after_in_parent=unforked.release, after_in_child=_renew
)
