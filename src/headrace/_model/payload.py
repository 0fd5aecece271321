"""The type of a queue's payloads, for type checkers: `T`, which is `bytes` unless something else is said (PEP 696)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # they know it without its being installed
    from typing_extensions import TypeVar

    T = TypeVar("T", default=bytes)
    T_co = TypeVar("T_co", default=bytes, covariant=True)
    A = TypeVar("A", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
    A = TypeVar("A")  # the payloads of a codec: a bare `Codec` is any

Plain = bytes | bytearray | memoryview | str  # the payloads of a queue of bytes
