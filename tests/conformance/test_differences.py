"""What is listed as different on three masters: it names bodies that there are, and what is refused says what to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import ConfigurationError, Counts, NewJob, Rate, Replace
from tests.support.differences import ANYWAY, WITH_SHARDS, listed

FOLDER = Path(__file__).parent
SHARDS = 6
REFUSED: dict[str, Callable[[Any], object]] = {  # by the name of what is refused, given `connect`
    "rate": lambda connect: connect(shards=SHARDS, rate=Rate(5)),
    "enqueue_many": lambda connect: connect(shards=SHARDS).enqueue_many([NewJob(b"x", id="i", if_exists=Replace())]),
    "ops": lambda connect: connect(shards=SHARDS).ops.lease("worker", 1),
    "position": lambda connect: connect(shards=SHARDS).admin.position("i"),
}


def test_the_list_names_what_there_is() -> None:
    """Bodies by their files, each once."""
    assert all(any(one.cases) for one in [*ANYWAY, *WITH_SHARDS])
    for (file, body), found in listed(sharded=True).items():
        text = (FOLDER / f"{file}.py").read_text("utf-8")
        assert re.search(rf"^def {body}\(", text, re.MULTILINE), f"{file}.py has no {body}"
        parts = Counter(part for part, _ in found)
        assert max(parts.values()) == 1, f"{body} of {file}.py is listed twice"
        assert "" not in parts or len(parts) == 1, f"{body} of {file}.py is listed as a whole, too"


def test_all_that_is_refused_is_here() -> None:
    assert REFUSED.keys() == {one.name for one in WITH_SHARDS if one.refused}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_do(newest_connect: Any, name: str) -> None:
    """And nothing is done of it."""
    (said,) = [one.refused for one in WITH_SHARDS if one.name == name]
    queue = newest_connect(shards=SHARDS)
    queue.enqueue(b"before")
    with pytest.raises(ConfigurationError, match=said):
        REFUSED[name](newest_connect)
    assert queue.counts() == Counts(waiting=1, enqueued=1)
