"""Calls that sharded queues refuse. Each error says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import ConfigurationError, Counts, NewJob, Rate, Replace
from tests.support.cases import DIFFERENCES

SHARDS = 6
REFUSED: dict[str, Callable[[Any], object]] = {  # by the name of what is refused, given `connect`
    "rate": lambda connect: connect(shards=SHARDS, rate=Rate(5)),
    "enqueue_many": lambda connect: connect(shards=SHARDS).enqueue_many(
        [NewJob(b"x", id="i", if_exists=Replace())]
    ),
    "ops": lambda connect: connect(shards=SHARDS).ops.lease("worker", 1),
    "position": lambda connect: connect(shards=SHARDS).admin.position("i"),
}


def test_all_that_is_refused_is_here() -> None:
    assert REFUSED.keys() == {name for name, found in DIFFERENCES.items() if found.refused}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_do(newest_connect: Any, name: str) -> None:
    """The refused call has no effect."""
    queue = newest_connect(shards=SHARDS)
    queue.enqueue(b"before")
    with pytest.raises(ConfigurationError, match=DIFFERENCES[name].refused):
        REFUSED[name](newest_connect)
    assert queue.counts() == Counts(waiting=1, enqueued=1)
