"""The description of a child's program, which the parent sends as it starts the child."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from importlib import import_module
from mmap import PAGESIZE
from pathlib import Path
from typing import Any, cast

from attrs import frozen

from headrace.errors import ConfigurationError

MIB = 1 << 20


@frozen
class Place:
    module: str
    path: str
    args: tuple[Any, ...] | None = None  # of a function that makes the handler

    def found(self) -> Any:
        """Import the module, and return the object. Raises the import's error, or
        `ConfigurationError`.
        """
        module = sys.modules.get(self.module) or import_module(self.module)
        try:
            found: Any = reduce(getattr, self.path.split("."), cast("Any", module))
        except AttributeError:
            raise ConfigurationError(
                f"an isolated handler is found by its name, and {self.module} has no {self.path}: "
                "define it at the top of its module"
            ) from None
        return found if self.args is None else found(*self.args)


@frozen
class Program:
    """All that a child must know before its first job. It is sent once, as the child starts."""

    places: Mapping[str | None, Place]  # of the handlers, by kind
    codec: Any  # the innermost codec of the queue
    batch: bool = False
    memory_mb: float | None = None
    measures: bool = False  # whether each answer tells the child's memory
    log_level: int = logging.WARNING
    django: bool = False  # whether the program is a Django project's


def resident(pid: int | str = "self") -> int:
    """Return the bytes of memory that a process has, or 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * PAGESIZE
    except (OSError, IndexError, ValueError):
        return 0


Served = tuple[Callable[[Any], Any], Callable[[Any], Any] | None]
Functions = Mapping[str | None, Served]
Loaded = tuple[Program, Functions]


def served(found: Any) -> Served:
    """Return the handler that an object is or has, and the function that encodes its results."""
    task = getattr(found, "_served", None)
    return (found, None) if task is None else cast("Served", task())
