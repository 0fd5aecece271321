"""The base of makers of operations: keys, settings and codec of a queue. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from attrs import field, frozen

from headrace._model.codec import BytesCodec, Codec, as_bytes, bound
from headrace._model.settings import QueueSettings
from headrace._protocol.keys import Keys
from headrace._protocol.op import Arg, Op
from headrace._protocol.script import script

T = TypeVar("T")


@frozen
class BaseOps:
    """The base of makers of operations."""

    keys: Keys
    settings: QueueSettings = QueueSettings()
    codec: Codec[Any] = BytesCodec()
    namespace: str = "headrace"
    bound: Codec[Any] = field(init=False, eq=False, repr=False)  # the codec, for the payloads of this queue

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "bound", bound(self.codec, self.keys.queue, self.namespace))

    def _op(
        self,
        name: str,
        args: Sequence[Arg],
        decode: Callable[[Any], T],
        extra: Sequence[str] = (),
        items: Sequence[Any] = (),
        join: Callable[[Sequence[Any]], Op[Any]] | None = None,
    ) -> Op[T]:
        source = script(name)
        keys = [self.keys.key(key) for key in source.key_names]
        lane = self.keys.lane("") if source.recorded else ""
        levels = self.keys.levels(self.settings.priorities) if source.levelled else ()
        return Op(name, source, [*keys, *extra, *levels], args, decode, lane, items, join)

    def _encoded(self, payload: Any, codec: Codec[Any] | None = None) -> bytes:
        data: Any = (codec or self.bound).encode(payload)
        return data if type(data) is bytes else as_bytes(data)
