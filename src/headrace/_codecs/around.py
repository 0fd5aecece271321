"""The base of the codecs around another, and `Compressed`, which makes payloads zstd frames."""

from __future__ import annotations

import threading
from copy import copy
from typing import Any, Generic, cast, overload

from headrace._forks import cached_property
from headrace._model.checks import count
from headrace._model.codec import (
    Codec,
    as_bytes,
    binds,
    bound,
    chosen,
    from_text,
    grouped,
    inline,
    keeper,
    of_job,
    untyped,
)
from headrace._model.job import T
from headrace.errors import CodecError, requiring


class Around(Generic[T]):
    """A codec that changes the bytes of another. The inner codec encodes first and decodes last."""

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
        """Return the inner codec's bytes. Raises `CodecError` for bytes that this codec did not
        make."""
        raise NotImplementedError

    def around(self, codec: Codec[Any]) -> Codec[Any]:
        """Make a copy around another codec, for values of any type or for payloads that many
        jobs share.
        """
        raise NotImplementedError

    def encode(self, payload: T, /) -> bytes:
        raise NotImplementedError

    def decode(self, data: bytes, /) -> T:
        """Undo the change, and decode by the inner codec. Raises `CodecError`, or the inner codec's
        error."""
        return self.codec.decode(self.opened(data))

    @cached_property
    def untyped(self) -> Codec[Any]:
        """A copy for values of any type, such as results and follow-ups for other queues."""
        return self.around(untyped(self.codec))

    @cached_property
    def inline(self) -> Codec[Any]:
        """A copy for payloads that stay in the queue, as many jobs share them."""
        return self.around(inline(self.codec))

    @property
    def repeatable(self) -> bool:
        """Whether equal payloads become equal bytes."""
        return getattr(self.codec, "repeatable", True)

    @property
    def binds(self) -> bool:
        """Whether payloads are bound to their queue and can't be read in another."""
        return binds(self.codec)

    def bound(self, queue: str, namespace: str = "headrace") -> Codec[Any]:
        return self._with(bound(self.codec, queue, namespace))

    def of(self, id: str) -> Codec[Any]:
        return self._with(of_job(self.codec, id))

    def grouped(self) -> Codec[Any]:
        """Make a copy for payloads that the server moves between the queues of a group."""
        return self._with(grouped(self.codec))

    def _with(self, codec: Codec[Any]) -> Around[Any]:
        made = copy(self)
        made.codec = codec
        for cached in ("untyped", "inline"):
            made.__dict__.pop(cached, None)
        return made

    def holds(self, kind: Any) -> bool:
        """Tell whether the inner codec can encode payloads of a type. Codecs without `holds` count
        as able to."""
        inner: Any = getattr(self.codec, "holds", None)
        return inner is None or bool(inner(kind))

    @property
    def keeps(self) -> bool:
        """Whether payloads are kept elsewhere, until their jobs are done."""
        return keeper(self.codec) is not None

    def ticket(self, data: bytes) -> str | None:
        inner = keeper(self.codec)
        return None if inner is None else inner.ticket(self.opened(data))

    def discard(self, ticket: str) -> None:
        inner = keeper(self.codec)
        if inner is not None:
            inner.discard(ticket)

    def from_text(self, text: str) -> T:
        """Return the payload that a text stands for, by the inner codec."""
        return cast("T", from_text(self.codec, text))

    def inner(self, payload: T) -> bytes:
        data: Any = self.codec.encode(payload)
        return data if type(data) is bytes else as_bytes(data)


MAGIC = b"\x28\xb5\x2f\xfd"  # the first bytes of a zstd frame
PIECE_BYTES = 1 << 20  # decompressed at a time, where a frame does not say its size
CONTENT_BYTES = 256 << 20  # of a payload, compressed or not


class Compressed(Around[T]):
    """Compresses another codec's bytes to one zstd frame, if that is smaller (extra `zstd`).

    *level* is zstd's, 1-22. Payloads of fewer than *threshold* bytes are stored unchanged, so this
    codec also reads payloads that were enqueued without it. A payload of more than *most* bytes is
    refused, and so is a frame that would become more.
    """

    @overload
    def __init__(
        self: Compressed[bytes],
        codec: None = None,
        *,
        level: int = 3,
        threshold: int = 512,
        most: int = CONTENT_BYTES,
    ) -> None: ...
    @overload
    def __init__(
        self, codec: Codec[T], *, level: int = 3, threshold: int = 512, most: int = CONTENT_BYTES
    ) -> None: ...
    def __init__(
        self,
        codec: Codec[Any] | None = None,
        *,
        level: int = 3,
        threshold: int = 512,
        most: int = CONTENT_BYTES,
    ) -> None:
        with requiring("Compressed", "zstd"):
            import zstandard
        super().__init__(codec)  # type: ignore[arg-type]
        self.level = count("level", level, most=22)
        self.threshold = count("threshold", threshold, least=0)
        self.most = count("most", most)
        self._zstd: Any = zstandard
        self._own = threading.local()  # zstandard's objects are for one thread each

    def __repr__(self) -> str:
        return f"Compressed({self.codec!r}, level={self.level})"

    def around(self, codec: Codec[Any]) -> Codec[Any]:
        return Compressed(codec, level=self.level, threshold=self.threshold, most=self.most)

    def encode(self, payload: T, /) -> bytes:
        """Encode by the inner codec, and compress. Raises its error, and `CodecError` for too large
        a payload."""
        data = self.inner(payload)
        if len(data) > self.most:
            raise CodecError(f"payload has {len(data):,} bytes, above most={self.most:,}")
        looks = data.startswith(MAGIC)  # like a frame: then it has to be one
        if len(data) < self.threshold and not looks:
            return data
        compressor = getattr(self._own, "compressor", None)
        if compressor is None:
            compressor = self._own.compressor = self._zstd.ZstdCompressor(
                level=self.level, write_checksum=True
            )
        frame: bytes = compressor.compress(data)
        return frame if looks or len(frame) < len(data) else data

    def opened(self, data: bytes) -> bytes:
        """Decompress a frame. A frame that does not state its size is read piece by piece,
        because it may be huge.
        """
        if not data.startswith(MAGIC):
            return data
        decompressor = getattr(self._own, "decompressor", None)
        if decompressor is None:
            decompressor = self._own.decompressor = self._zstd.ZstdDecompressor()
        try:
            size = self._zstd.frame_content_size(data)
            if 0 <= size <= self.most:
                return cast("bytes", decompressor.decompress(data, allow_extra_data=False))
            pieces: list[bytes] = []
            if size < 0:
                with decompressor.stream_reader(data, read_across_frames=False) as reader:
                    size = 0
                    while size <= self.most and (piece := reader.read(PIECE_BYTES)):
                        pieces.append(piece)
                        size += len(piece)
        except Exception as error:  # zstandard's errors, and others that it lets through
            raise CodecError(f"not a zstd frame: {error}") from None
        if size > self.most:
            raise CodecError(f"decompresses to more than most={self.most:,} bytes")
        return b"".join(pieces)
