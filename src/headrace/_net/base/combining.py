"""The base of both combiners: calls that wait for a round trip, and leave together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define

from headrace._net.base.lanes import Meanwhile

TRIPS = 2  # round trips at a time: the server works on one, while what it has answered to the other is taken in
CALLS_AT_MOST = 64  # calls of a round trip: their answers are all in memory, each of about 1 MiB at most


@define(eq=False)
class Call:
    """A call that waits for its round trip."""

    commands: Sequence[bytes]
    leaves: Meanwhile
    answers: list[Any] | None = None
    error: BaseException | None = None


def leaving(calls: Sequence[Call]) -> tuple[list[Call], dict[int, Exception]]:
    """Tell calls that they leave now; return those that do, and the errors of those that are too late, by identity."""
    left: list[Call] = []
    failed: dict[int, Exception] = {}
    for call in calls:
        try:
            if call.leaves is not None:
                call.leaves()
            left.append(call)
        except Exception as error:
            failed[id(call)] = error
    return left, failed
