"""The base of the codecs around another."""

from __future__ import annotations

from copy import copy
from typing import Any, Generic, overload

from headrace._forks import cached_property
from headrace._model.codec import Codec, as_bytes, binds, bound, chosen, grouped, inline, keeper, of_job, untyped
from headrace._model.job import T


class Around(Generic[T]):
    """A codec that changes the bytes of another: the inner one encodes first, and decodes last."""

    codec: Codec[T]

    @overload
    def __init__(self: Around[bytes], codec: None = None) -> None: ...
    @overload
    def __init__(self, codec: Codec[T]) -> None: ...
    def __init__(self, codec: Codec[Any] | None = None) -> None:
        self.codec = chosen(codec)

    @property
    def name(self) -> str:
        """The name in declarations, by which the queue's users compare their codecs."""
        return f"{type(self).__name__}({getattr(self.codec, 'name', type(self.codec).__name__)})"

    def opened(self, data: bytes) -> bytes:
        """Return the inner codec's bytes. Raises `CodecError` for bytes that this codec did not make."""
        raise NotImplementedError

    def around(self, codec: Codec[Any]) -> Codec[Any]:
        """Make the same around another codec: for values of any type, or for payloads that many jobs share."""
        raise NotImplementedError

    def encode(self, payload: T, /) -> bytes:
        """Encode by the inner codec, and change its bytes."""
        raise NotImplementedError

    def decode(self, data: bytes, /) -> T:
        """Undo the change, and decode by the inner codec. Raises `CodecError`, or the inner codec's error."""
        return self.codec.decode(self.opened(data))

    @cached_property
    def untyped(self) -> Codec[Any]:
        """The same around the inner codec for values of any type: results, and follow-ups for other queues."""
        return self.around(untyped(self.codec))

    @cached_property
    def inline(self) -> Codec[Any]:
        """The same around the inner codec for payloads that stay in the queue, as many jobs share them."""
        return self.around(inline(self.codec))

    @property
    def repeatable(self) -> bool:
        """Whether equal payloads become equal bytes."""
        return getattr(self.codec, "repeatable", True)

    @property
    def binds(self) -> bool:
        """Whether payloads are bound to their queue: read in no other."""
        return binds(self.codec)

    def bound(self, queue: str, namespace: str = "headrace") -> Codec[Any]:
        """Make the same for the payloads of one queue."""
        return self._with(bound(self.codec, queue, namespace))

    def of(self, id: str) -> Codec[Any]:
        """Make the same for the payload of one job."""
        return self._with(of_job(self.codec, id))

    def grouped(self) -> Codec[Any]:
        """Make the same for payloads that the server moves between the queues of a group."""
        return self._with(grouped(self.codec))

    def _with(self, codec: Codec[Any]) -> Around[Any]:
        """Make a copy around *codec*, which reads and writes the same payloads, but is bound."""
        made = copy(self)
        made.codec = codec
        for cached in ("untyped", "inline"):
            made.__dict__.pop(cached, None)
        return made

    def holds(self, kind: Any) -> bool:
        """Tell whether the inner codec can encode payloads of a type, as far as it says so."""
        inner: Any = getattr(self.codec, "holds", None)
        return inner is None or bool(inner(kind))

    @property
    def keeps(self) -> bool:
        """Whether payloads are kept elsewhere, until their jobs are done."""
        return keeper(self.codec) is not None

    def ticket(self, data: bytes) -> str | None:
        """Return the name under which a payload is kept elsewhere."""
        inner = keeper(self.codec)
        return None if inner is None else inner.ticket(self.opened(data))

    def discard(self, ticket: str) -> None:
        """Delete the payload of this name: its job is done."""
        inner = keeper(self.codec)
        if inner is not None:
            inner.discard(ticket)

    def inner(self, payload: T) -> bytes:
        """Encode by the inner codec."""
        data: Any = self.codec.encode(payload)
        return data if type(data) is bytes else as_bytes(data)
