"""The base of both combiners: calls wait for a round trip, and share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define

from headrace._net.base.lanes import Meanwhile

TRIPS = 2  # round trips at a time: the server works on one while we process the answers of the other
CALLS_AT_MOST = 64  # calls in a round trip: all answers are in memory, each of about 1 MiB at most


@define(eq=False)
class Call:
    """A call that waits for its round trip."""

    commands: Sequence[bytes]
    leaves: Meanwhile
    answers: list[Any] | None = None
    error: BaseException | None = None


def leaving(calls: Sequence[Call]) -> tuple[list[Call], dict[int, Exception]]:
    """Mark calls as sent. Return the calls to send, and the errors of calls that are too late, by identity."""
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
