"""Objects with connections, or for this process only: pickling fails with an error that names an alternative."""

from __future__ import annotations

from typing import Any, ClassVar


class Unpicklable:
    """The base of objects that can't go to another process, nor be copied."""

    __slots__ = ()
    _instead: ClassVar[str] = "make one of its own in each process, from its name and URL"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a {type(self).__name__} is neither pickled nor copied: {self._instead}")
