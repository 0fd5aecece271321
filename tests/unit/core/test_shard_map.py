"""The table of shards as a client knows it, while several threads use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace._core.effects import Scan, Send
from headrace._core.shards import map as shard_map
from headrace._core.shards.map import ShardMap
from headrace._model.job import NewJob
from headrace._model.settings import QueueSettings
from headrace._model.shards import Table
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import shard_ops as made
from headrace.errors import ShardsMismatch

FIRST = Table.of("q", 2)
CHANGING = FIRST.divided(5)
CHANGED = CHANGING.handed_over()
ALONE = CHANGED.without(0, {}).without(1, {})
TABLES = [FIRST, CHANGING, CHANGED, ALONE]
KEYS = [f"k{number}" for number in range(20)]


def shards(*before: Table) -> ShardMap:
    """Return a map that has read these tables."""
    known = ShardMap(Ops(Keys.of("q"), QueueSettings(shards=2)))
    for one in before:
        answered(known.look(), one)
    return known


def answered(call: Any, found: Table | None) -> Any:
    """Let a call read or write this table, and return its value."""
    try:
        assert isinstance(next(call), Send)
        call.send([{} if found is None else {"queue:q": "1", **found.rows()}])  # it is noted
    except StopIteration as end:
        return end.value
    raise AssertionError("it asks more")


def uses(known: ShardMap) -> list[Callable[[], Any]]:
    """Return the ways to a shard."""
    return [
        lambda: [known.of(key) for key in KEYS],
        lambda: [known.of(None) for _ in KEYS],
        known.round,
        known.ordered,
        lambda: [known.where(key) for key in KEYS],
        lambda: [known.where(key, key) for key in KEYS],
        lambda: [known.before(NewJob(b"", key), known.of(key)) for key in KEYS],
        lambda: [known.at(number) for number in known.way(1)],
    ]


@pytest.mark.parametrize("use", range(8))
def test_what_is_between_two_tables_is_seen_by_nobody(
    use: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, seen = shards(), list[int]()

    def shard_ops(*args: Any) -> Any:  # while a thread takes in a table, another one uses the map
        seen.append(known.table.version)
        uses(known)[use]()
        return made(*args)

    monkeypatch.setattr(shard_map, "shard_ops", shard_ops)
    for table in TABLES:
        answered(known.look(), table)
        uses(known)[use]()
    assert len(seen) == 5  # successors: what there was is not made again
    assert set(seen) == {FIRST.version}


def test_an_answer_to_an_earlier_question_replaces_no_later_one() -> None:
    """Its thread slept meanwhile. A thread that has read a table goes on with no older one."""
    known = shards(FIRST)
    late: Any = known.look()
    next(late)
    answered(known.look(), CHANGED)
    with pytest.raises(StopIteration) as end:
        late.send([FIRST.rows()])
    assert known.table.same(CHANGED)
    assert not end.value.value  # it was asked about what this thread had seen


def test_a_table_that_was_lost_is_known_all_the_same() -> None:
    """A later answer counts even with an earlier version, because a failover may lose the last
    states of the table."""
    known = shards(CHANGED)
    answered(known.look(), CHANGING)
    assert known.table.same(CHANGING)


def test_a_look_tells_what_is_new_to_the_caller() -> None:
    """Another thread has read the table already. It is still news to a caller that asked the shards
    of the old table.
    """
    known = shards(FIRST)
    seen = known.table
    answered(known.look(), CHANGING)
    assert not answered(known.look(), CHANGING)
    assert answered(known.look(seen), CHANGING)


def test_a_change_is_of_the_table_that_its_caller_has_seen() -> None:
    """The server compares the version of the caller's table, not of a table that another thread has
    read meanwhile."""
    known = shards(FIRST)
    call: Any = known.change(FIRST, FIRST.divided(3))
    op = next(call).ops[0]
    assert op.args[1] == str(FIRST.version)
    answered(known.look(), CHANGING)
    with pytest.raises(StopIteration) as end:
        call.send([CHANGING.rows()])
    assert not end.value.value


def scanned(known: ShardMap) -> None:
    """Look for a missing table where shards of another one exist."""
    call: Any = known.look()
    next(call)
    effect = call.send([{}])
    for _ in range(5):
        if isinstance(effect, Scan):
            found = ["headrace:{q~77.0}:q:jobs"] if effect.cursor == 9 else []
            effect = call.send((9 if not effect.cursor else 0, found))
        else:
            effect = call.send([{}])


def test_strangers_are_found_again() -> None:
    """A scan stops when it finds shards of another table. The next call begins there and does not
    skip them."""
    known = shards()
    with pytest.raises(ShardsMismatch):
        scanned(known)
    call: Any = known.look()
    next(call)
    assert call.send([{}]).cursor == 9
