"""The commands that block until there may be jobs to lease. All other calls are scripts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from headrace._model.checks import term
from headrace._protocol.keys import BELL, GROUP, Keys
from headrace._protocol.op import Arg


def blocked_read(queues: Sequence[Keys], block: float, *, paused: bool = False) -> tuple[Arg, ...]:
    """Block until one of these queues may have a job to lease, *block* seconds at most.

    A delivered entry goes to a reserved consumer, from which the next `lease` of any worker takes it. So a lost reply
    or a cancelled read loses nothing. While queues are *paused*, the read must deliver nothing, and wake every waiter
    when a queue is resumed.
    """
    milliseconds = max(1, term("block", block, zero=True))  # 0 would block for ever
    wakes = [keys.key("wake") for keys in queues]
    if paused:
        return ("XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", *wakes, *["$"] * len(wakes))
    streams = [keys.key("jobs") for keys in queues]
    return (
        "XREADGROUP", "GROUP", GROUP, BELL, "COUNT", 1, "BLOCK", milliseconds, "STREAMS", *streams, *wakes,
        *[">"] * (2 * len(wakes)),
    )  # fmt: skip


def forgotten_read(queues: Sequence[Keys]) -> tuple[Arg, ...]:
    """Read wake-ups that no lease call has taken: their reader may have died, or may hang.

    This raises the entry's delivery count, which does not matter: the lease sets the count that matters.
    """
    streams = [keys.key(key) for key in ("jobs", "wake") for keys in queues]
    return ("XREADGROUP", "GROUP", GROUP, BELL, "COUNT", 1, "STREAMS", *streams, *["0"] * len(streams))


def woken_keys(reply: Any, keys: Collection[str]) -> list[str]:
    """List the *keys* in which a blocked read found entries: all keys, if its reply does not tell."""
    if isinstance(reply, Exception):  # the error names a missing group, which the following lease call makes
        return [key for key in keys if f"'{key}'" in str(reply)] or list(keys)
    rows = cast(
        "Iterable[tuple[bytes, Any]]", reply.items() if isinstance(reply, dict) else reply or ()
    )  # RESP3, RESP2
    names = [key.decode() for key, entries in rows if entries]
    return [name for name in names if name in keys]
