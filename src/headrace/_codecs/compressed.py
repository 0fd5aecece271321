"""`Compressed`: payloads as zstd frames."""

from __future__ import annotations

import threading
from typing import Any, overload

from headrace._codecs.around import Around
from headrace._model.checks import count
from headrace._model.codec import Codec
from headrace._model.job import T
from headrace.errors import CodecError, ConfigurationError, without_extra

MAGIC = b"\x28\xb5\x2f\xfd"  # the first bytes of a zstd frame
PIECE_BYTES = 1 << 20  # decompressed at a time, where a frame does not say its size
CONTENT_BYTES = 256 << 20  # of a payload, compressed or not


class Compressed(Around[T]):
    """Another codec's bytes as one zstd frame, where that is smaller (extra `zstd`).

    *level*: of zstd, 1-22. *threshold*: bytes below which nothing is compressed. Smaller payloads are stored unchanged,
    so this codec also reads payloads that were enqueued without it. A payload of more than *most* bytes is refused, and
    so is a frame that would become more.
    """

    @overload
    def __init__(
        self: Compressed[bytes], codec: None = None, *, level: int = 3, threshold: int = 512, most: int = CONTENT_BYTES
    ) -> None: ...
    @overload
    def __init__(self, codec: Codec[T], *, level: int = 3, threshold: int = 512, most: int = CONTENT_BYTES) -> None: ...
    def __init__(
        self, codec: Codec[Any] | None = None, *, level: int = 3, threshold: int = 512, most: int = CONTENT_BYTES
    ) -> None:
        try:
            import zstandard
        except ImportError:
            raise ConfigurationError(without_extra("Compressed", "zstd")) from None
        super().__init__(codec)  # type: ignore[arg-type]
        self.level = count("level", level, most=22)
        self.threshold = count("threshold", threshold, least=0)
        self.most = count("most", most)
        self._zstd: Any = zstandard
        self._own = threading.local()  # zstandard's objects are for one thread each

    def __repr__(self) -> str:
        return f"Compressed({self.codec!r}, level={self.level})"

    def around(self, codec: Codec[Any]) -> Codec[Any]:
        """Make the same around another codec."""
        return Compressed(codec, level=self.level, threshold=self.threshold, most=self.most)

    def encode(self, payload: T, /) -> bytes:
        """Encode by the inner codec, and compress. Raises its error, and `CodecError` for too large a payload."""
        data = self.inner(payload)
        if len(data) > self.most:
            raise CodecError(f"payload has {len(data):,} bytes, above most={self.most:,}")
        looks = data.startswith(MAGIC)  # like a frame: then it has to be one
        if len(data) < self.threshold and not looks:
            return data
        compressor = getattr(self._own, "compressor", None)
        if compressor is None:
            compressor = self._own.compressor = self._zstd.ZstdCompressor(level=self.level, write_checksum=True)
        frame: bytes = compressor.compress(data)
        return frame if looks or len(frame) < len(data) else data

    def opened(self, data: bytes) -> bytes:
        """Decompress a frame; in pieces if it does not say its size, as it may grow without bound."""
        if not data.startswith(MAGIC):
            return data
        decompressor = getattr(self._own, "decompressor", None)
        if decompressor is None:
            decompressor = self._own.decompressor = self._zstd.ZstdDecompressor()
        try:
            size = self._zstd.frame_content_size(data)
            if 0 <= size <= self.most:
                content: bytes = decompressor.decompress(data, allow_extra_data=False)
                return content
            pieces: list[bytes] = []
            if size < 0:
                with decompressor.stream_reader(data, read_across_frames=False) as reader:
                    size = 0
                    while size <= self.most and (piece := reader.read(PIECE_BYTES)):
                        pieces.append(piece)
                        size += len(piece)
        except Exception as error:  # zstandard's, and what it lets through
            raise CodecError(f"not a zstd frame: {error}") from None
        if size > self.most:
            raise CodecError(f"decompresses to more than most={self.most:,} bytes")
        return b"".join(pieces)
