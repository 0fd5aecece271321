"""The base of both inspectors: arguments turned into views, and replies of SCAN into names."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from redis.exceptions import ResponseError

from headrace._core.views.redaction import Redact
from headrace._core.views.views import Views
from headrace._model.checks import seconds
from headrace._model.codec import Codec
from headrace._net.base.address import Address, Connected
from headrace._net.base.retries import bounding
from headrace.errors import HeadraceError

REFUSALS = (ResponseError, HeadraceError)  # errors of one queue, where others may be sound
FRESH_S = 2.0  # seconds for which what was read is shown again


class BaseInspector(Connected):
    """The base of both inspectors: an address, and the views of one namespace."""

    def __init__(
        self, address: Address, namespace: str, codecs: Mapping[str, Codec[Any]] | None, redact: Redact | None,
        fresh: float | timedelta, timeout: float | timedelta,
    ) -> None:  # fmt: skip
        self.views = Views(namespace, codecs, redact, seconds("fresh", fresh), REFUSALS)
        self._within = bounding(seconds("timeout", timeout, zero=False))
        self._address = address

    def __repr__(self) -> str:
        return f"{type(self).__name__}(namespace={self.views.namespace!r})"

    def forget(self) -> None:
        """Drop all cached readings, as an action has changed the queue."""
        self.views.forget()
