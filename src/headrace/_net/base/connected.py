"""The base of queues and flows: where they connect to, and when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from weakref import WeakSet

from headrace._forks import cached_property
from headrace._model.pickling import Unpicklable
from headrace._net.base.address import Address

Timeout = float | timedelta | None


def least(*bounds: float | None) -> float | None:
    """Return the least of some bounds, where `None` is none."""
    return min((bound for bound in bounds if bound is not None), default=None)


OPENED: WeakSet[Connected] = WeakSet()  # those with connections


class Connected(Unpicklable):
    """The base of queues and flows: an address, and connections to it, which are made by the first call."""

    _address: Address
    _within: float | None = None  # seconds that bound each round trip, where it is not the default

    @cached_property
    def _executor(self) -> Any:
        """The executor, made when it is first needed."""
        raise NotImplementedError

    def _detach(self) -> None:
        """Leave the server: a later call connects anew, from whatever event loop it comes."""
        self._address.leave()
        OPENED.discard(self)
        for made in ("_executor", "_waiters"):
            vars(self).pop(made, None)

    @cached_property
    def _settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = self._executor.pool.connection_kwargs
        return settings
