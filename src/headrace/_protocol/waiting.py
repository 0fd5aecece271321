"""The commands that block until there may be something to lease: all that is sent and is no script."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from headrace._model.checks import term
from headrace._protocol.keys import BELL, GROUP, Keys
from headrace._protocol.op import Arg


def blocked_read(queues: Sequence[Keys], block: float, *, paused: bool = False) -> tuple[Arg, ...]:
    """Block until there may be something to lease in one of these queues, *block* seconds at most.

    What it delivers goes to a reserved consumer, from which the next `lease` of any worker takes it: so a reply that is
    lost, or a read that is cancelled, loses nothing. While queues are *paused* nothing may be delivered at all, and
    every waiter is to be woken when one is resumed.
    """
    milliseconds = max(1, term("block", block, zero=True))  # 0 would be for ever
    wakes = [keys.key("wake") for keys in queues]
    if paused:
        return ("XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", *wakes, *["$"] * len(wakes))
    streams = [keys.key("jobs") for keys in queues]
    return (
        "XREADGROUP", "GROUP", GROUP, BELL, "COUNT", 1, "BLOCK", milliseconds, "STREAMS", *streams, *wakes,
        *[">"] * (2 * len(wakes)),
    )  # fmt: skip


def forgotten_read(queues: Sequence[Keys]) -> tuple[Arg, ...]:
    """Read wake-ups that no lease call has taken: their reader may have died, or stand still.

    Each delivery of it counts anew, which is no matter: that which counts is when it is leased.
    """
    streams = [keys.key(key) for key in ("jobs", "wake") for keys in queues]
    return ("XREADGROUP", "GROUP", GROUP, BELL, "COUNT", 1, "STREAMS", *streams, *["0"] * len(streams))


def rung(reply: Any, keys: Collection[str]) -> list[str]:
    """List the *keys* in which a blocked read has found something: all, if its reply does not tell."""
    if isinstance(reply, Exception):  # a group that is missing is named, and made by the lease call that follows
        return [key for key in keys if f"'{key}'" in str(reply)] or list(keys)
    rows = cast(
        "Iterable[tuple[bytes, Any]]", reply.items() if isinstance(reply, dict) else reply or ()
    )  # RESP3, RESP2
    names = [key.decode() for key, entries in rows if entries]
    return [name for name in names if name in keys]
