"""The table of shards. It is fixed, because all clients must find the same shard for a key."""

from __future__ import annotations

import pickle
from binascii import crc32
from itertools import pairwise

from headrace._model.job import Anonymous, Job, ShardedName
from headrace._model.shards import RANGE, SLOTS, Table, apart
from headrace._net.base.cluster import slot_of
from headrace._protocol.keys import Keys
from tests.support.facts import each


@each("shards", [1, 2, 3, 6, 16, 64, 256])
def test_shards_divide_keys_and_slots(shards: int) -> None:
    parts = Table.of("orders", shards).shards
    assert (parts[0].first, parts[-1].last) == (0, RANGE - 1)
    assert all(one.last + 1 == other.first for one, other in pairwise(parts))
    slots = [slot_of(Keys.of("orders/new").at(part).prefix) for part in parts]
    assert [slot * shards // SLOTS for slot in slots] == [*range(shards)]


def test_a_key_is_in_the_shard_of_its_range() -> None:
    for shards in (2, 3, 6, 64):
        table = Table.of("g", shards)
        for n in range(500):
            part = table.shards[table.shard_of(f"key {n}")]
            assert part.first <= crc32(f"key {n}".encode()) <= part.last


def test_the_shards_of_keys_never_change() -> None:
    """Other clients and waiting jobs rely on the shards that a published version computed."""
    table = Table.of("ingest", 6)
    assert [table.shard_of(key) for key in ("customer-42", "a", "ä", "order-17")] == [1, 5, 2, 2]
    tags = "ingest~0.11 ingest~1.3 ingest~2.12 ingest~3.3 ingest~4.2 ingest~5.1"
    assert " ".join(part.tag("ingest") for part in table.shards) == tags


def test_keys_of_a_shard() -> None:
    keys = Keys.of("g/a", "ns")
    part = Table.of("g", 4).shards[3]
    assert keys.at(part).key("jobs") == f"ns:{{g~3.{part.salt}}}:g/a:jobs"
    assert keys.shards == Keys.of("g/b", "ns").shards == "ns:{g}:shards"
    assert (keys.at(part).queue, keys.at(part).queue.shard) == ("g/a", 3)  # type: ignore[attr-defined]


def test_ids_tell_their_shards() -> None:
    assert apart("1795-0@7") == ("1795-0", 7)
    assert apart(Anonymous.at("1795-0.2", 3)) == ("1795-0.2", 3)
    assert apart("me@7") == ("me@7", None)
    assert apart("1795-0") == ("1795-0", None)


def test_jobs_keep_their_shard_when_they_are_pickled() -> None:
    job = Job(Anonymous.at("1795-0", 7), b"x", ShardedName.at("q", 7))
    again = pickle.loads(pickle.dumps(job))
    assert (again.id, again.shard, apart(again.id)) == ("1795-0@7", 7, ("1795-0", 7))
