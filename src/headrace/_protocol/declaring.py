"""The declaration of a queue in words: its users' options, and their differences."""

from __future__ import annotations

from headrace._model.codec import BytesCodec, Codec
from headrace._model.settings import QueueSettings
from headrace._protocol.answers import Declaration


def declaration(codec: Codec, settings: QueueSettings) -> dict[str, str]:
    """Return the declaration of one user of a queue: its codec, and the options that it gives and all must agree on.

    Plain bytes declare no codec: a program that sends or takes them decodes nothing.
    """
    if type(codec) is BytesCodec:
        return settings.declared()
    return {"codec": str(getattr(codec, "name", type(codec).__name__)), **settings.declared()}


def differing(queue: str, ours: dict[str, str], answer: Declaration, *, serving: bool) -> list[str]:
    """Describe each option of *queue* that others declared differently from *ours*. *serving*: we are a worker."""
    counts = "this one counts now" if serving else "theirs counts"
    return [
        f"queue {queue!r}: {name} is {ours.get(name)} here, and {theirs} as others declare it; {counts} "
        f"(version {answer.version}); declare the queue once, for all who use it"
        for name, theirs in answer.others.items()
    ]
