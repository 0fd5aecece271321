"""`Typed`, the codec of a queue for the pages. It takes typed texts, and stored payloads that
are sent again.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from headrace._codecs.around import Around
from headrace._codecs.offloaded import MAGIC
from headrace._forks import cached_property
from headrace._model.codec import Codec, binds, from_text, inline, keeper, of_job
from headrace.errors import CodecError, describe_error


@frozen
class Stored:
    """The stored bytes of the payload of the job *id*, to be sent again as another job's."""

    data: bytes
    id: str


class Typed(Around[Any]):
    """Encodes typed texts by the inner codec. It reads payloads as stored, and writes bytes
    unchanged. A `Stored` payload is encoded anew if the inner codec binds it to its job, or
    keeps it elsewhere until that job is done.
    """

    def encode(self, payload: Any, /) -> bytes:
        """Encode a text, stored bytes, or a `Stored` payload. Raises `CodecError`."""
        try:
            if isinstance(payload, str):
                return self.inner(from_text(self.codec, payload))
            if isinstance(payload, bytes):
                return payload
            return self._again(payload)
        except Exception as error:  # whatever the codec raises
            raise CodecError(
                f"the queue's codec does not take that payload: {describe_error(error)}"
            ) from error

    def _again(self, payload: Stored) -> bytes:
        if binds(self.codec) or keeper(self.codec) is not None:
            return self.inner(of_job(self.codec, payload.id).decode(payload.data))
        if payload.data.startswith(MAGIC):
            raise CodecError(
                "it is kept in a store, until its own job is done: give the codec to app(codecs=…)"
            )
        return payload.data

    def opened(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes, /) -> Any:
        return data

    def around(self, codec: Codec[Any]) -> Codec[Any]:
        """Return *codec*, because results and signals are no typed texts."""
        return codec

    @cached_property
    def inline(self) -> Codec[Any]:
        return self._with(inline(self.codec))
