"""The base of queues and flows: their address, and when they connect."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar
from weakref import WeakSet

from headrace._forks import cached_property
from headrace._net.base.address import Address

Timeout = float | timedelta | None


def least(*bounds: float | None) -> float | None:
    """Return the smallest of several limits, where `None` means no limit."""
    return min((bound for bound in bounds if bound is not None), default=None)


OPENED: WeakSet[Connected] = WeakSet()  # queues and flows with connections


class Unpicklable:
    """The base of objects that can't go to another process, nor be copied."""

    __slots__ = ()
    _instead: ClassVar[str] = "make one of its own in each process, from its name and URL"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a {type(self).__name__} is neither pickled nor copied: {self._instead}")


class Connected(Unpicklable):
    """The base of queues and flows: an address, and connections to it, which the first call opens."""

    _address: Address
    _within: float | None = None  # seconds that bound each round trip, if not the default

    @cached_property
    def _executor(self) -> Any:
        """The executor, made when it is first needed."""
        raise NotImplementedError

    def _detach(self) -> None:
        """Leave the server. A later call connects again, from any event loop."""
        self._address.leave()
        OPENED.discard(self)
        for made in ("_executor", "_waiters"):
            vars(self).pop(made, None)

    @cached_property
    def _settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = self._executor.pool.connection_kwargs
        return settings
