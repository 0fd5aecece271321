"""Detection of jumps of a server's clock, against a clock of this machine that never jumps."""

from __future__ import annotations

import time
from weakref import WeakValueDictionary

from headrace import _forks

TOLERANCE_S = 1.0  # seconds; scripts tolerate as much
DRIFT_S_PER_S = 0.001  # seconds by which two clocks may drift apart in one
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while the machine sleeps


class ServerClock:
    """The offset of a server's clock to ours, as two bounds, since a reply takes its time."""

    def __init__(self) -> None:
        self._lock = _forks.lock()
        self._bounds: tuple[float, float, float] | None = None

    def jump(self, now: float, took: float, ours: float | None = None) -> float:
        """Return the seconds by which it has jumped since the last reply, 0.0 if it has not.

        *now*: the server's time in a reply that took *took* seconds and came at *ours* by our clock (default: now).
        """
        received = time.clock_gettime(_CLOCK) if ours is None else ours
        least, most = now - received, now - received + took
        with self._lock:
            before = self._bounds
            if before is not None and received - took < before[2]:
                return 0.0  # it was on its way as the last one came: the server may have said either first
            self._bounds = (least, most, received)
        if before is None:
            return 0.0
        forgiven = TOLERANCE_S + DRIFT_S_PER_S * abs(received - before[2])
        if least - before[1] > forgiven:
            return least - before[1]
        if before[0] - most > forgiven:
            return most - before[0]
        return 0.0


_clocks: WeakValueDictionary[str, ServerClock] = WeakValueDictionary()
_lock = _forks.lock()


def clock_of(place: str) -> ServerClock:
    """Return the clock of a queue's server, shared by all workers of this process: a jump is logged once."""
    with _lock:
        return _clocks.setdefault(place, ServerClock())
