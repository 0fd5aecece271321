"""Jumps of a server's clock: seen against a clock of this machine that never jumps."""

from __future__ import annotations

import threading
import time
from weakref import WeakValueDictionary

TOLERANCE_S = 1.0  # what scripts forgive, too
DRIFT = 0.001  # seconds a second that two clocks may go apart
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps


class ServerClock:
    """How far a server's clock is ahead of ours: between two bounds, since a reply takes its time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bounds: tuple[float, float, float] | None = None

    def jump(self, now: float, took: float, ours: float | None = None) -> float:
        """Seconds by which it has jumped since the last reply, 0.0 if it has not.

        *now*: what a reply says that came after *took* seconds, at *ours* by our clock (by default: now).
        """
        received = time.clock_gettime(_CLOCK) if ours is None else ours
        least, most = now - received, now - received + took
        with self._lock:
            before, self._bounds = self._bounds, (least, most, received)
        if before is None:
            return 0.0
        forgiven = TOLERANCE_S + DRIFT * abs(received - before[2])
        if least - before[1] > forgiven:
            return least - before[1]
        if before[0] - most > forgiven:
            return most - before[0]
        return 0.0


_clocks: WeakValueDictionary[str, ServerClock] = WeakValueDictionary()
_lock = threading.Lock()


def clock_of(place: str) -> ServerClock:
    """The one of a queue's server, shared by all workers of this process: a jump is told once."""
    with _lock:
        return _clocks.setdefault(place, ServerClock())
