"""The bound for waiting jobs. The tests check the share of a shard, and that calls of one shard can
be joined."""

from __future__ import annotations

from functools import cache

import pytest
from attrs import evolve

from headrace._core.shards.map import ShardMap
from headrace._model.policy import Durability, room
from headrace._model.settings import QueueSettings
from headrace._model.shards import SHARDS_AT_MOST, Table
from headrace._protocol.features.conditions import Admission
from headrace._protocol.keys import Keys
from headrace._protocol.shards import WholeOps
from tests.support.facts import each


@cache
def shares(shards: int) -> frozenset[float]:
    """Return the shares of so many shards, each once. Making the tables takes far longer than
    reading them."""
    return frozenset(part.share for part in Table.of("q", shards).shards)


@pytest.mark.slow
@each("most", [1, 5, 6, 7, 1_000, 10**9, 10**12 + 1])
def test_the_shares_are_equal_and_exact(most: int) -> None:
    """They are rounded up, though the ranges of shards differ by a key."""
    for shards in range(1, SHARDS_AT_MOST + 1):
        assert {room(most, share) for share in shares(shards)} == {-(-most // shards)}


def test_a_shard_has_its_share() -> None:
    settings = QueueSettings(shards=6, max_waiting=100)
    whole = WholeOps(Keys.of("q"), settings, None, "headrace", 6)  # type: ignore[arg-type]  # no payloads here
    shards, admission = ShardMap(whole), Admission(whole)
    assert {admission.at(ops).most for ops in shards.ordered()} == {17}
    assert {admission.at(ops).most_together for ops in shards.ordered()} == {1}
    assert str(admission.at(shards.at(4)).full(18)).startswith(
        "18 jobs wait there, and of max_waiting the share of shard 4 is 17"
    )
    free = evolve(whole, settings=QueueSettings(shards=6))
    assert Admission(free).at(shards.at(0)) is not admission.at(shards.at(0))


def test_calls_of_a_shard_are_joined_by_one_maker() -> None:
    """An executor keeps a maker's state for joining, so a new maker for each call would leak
    memory."""
    whole = WholeOps(Keys.of("q"), QueueSettings(shards=6, max_waiting=100), None, "headrace", 6)  # type: ignore[arg-type]  # no payloads here
    shards, admission = ShardMap(whole), Admission(whole)
    durability = admission.with_durability(Durability(1))
    assert admission.with_durability(None) is admission
    assert durability is admission.with_durability(Durability(1)) is not admission
    for ops in shards.ordered():
        assert admission.at(ops) is admission.with_durability(None).at(ops)
        assert durability.at(ops) is durability.at(ops)
        assert durability.at(ops).durable == Durability(1)
    assert len({id(admission.at(ops)) for ops in shards.ordered()}) == 6


def test_a_round_begins_with_the_next_shard() -> None:
    """A round has each shard once. It leaves out those of silent nodes, unless all are silent."""
    whole = WholeOps(Keys.of("q"), QueueSettings(shards=6), None, "headrace", 6)  # type: ignore[arg-type]  # no payloads here
    shards = ShardMap(whole)
    rounds = [[ops.shard.number for ops in shards.round()] for _ in range(6)]
    assert {numbers[0] for numbers in rounds} == {*range(6)}
    assert all(sorted(numbers) == [*range(6)] for numbers in rounds)
    some = ShardMap(whole, lambda keys: keys.shard is not None and keys.shard.number != 2)
    assert {ops.shard.number for ops in some.round()} == {0, 1, 3, 4, 5}
    assert len(ShardMap(whole, lambda _: False).round()) == 6
