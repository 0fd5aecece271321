"""Codecs of payloads and results, which are of a type, or around another codec."""

from headrace._codecs.around import Compressed
from headrace._codecs.encrypted import Encrypted
from headrace._codecs.formats import JSONCodec, MsgpackCodec, PydanticCodec
from headrace._codecs.offloaded import DirectoryStore, Offloaded
from headrace._model.codec import Codec

__all__ = [
    "Codec",
    "Compressed",
    "DirectoryStore",
    "Encrypted",
    "JSONCodec",
    "MsgpackCodec",
    "Offloaded",
    "PydanticCodec",
]

for _name in __all__:  # where users find them: in reprs, pickles and pydoc
    globals()[_name].__module__ = __name__
