"""Functions that find the shards that a verb asks, one or all, in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

from headrace._core.effects import Call, send, send_all
from headrace._core.shards.map import OneShard, ShardMap
from headrace._protocol.keys import job_id
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops

R = TypeVar("R")
M = TypeVar("M", bound=OneShard | ShardMap)


def where(
    map: OneShard | ShardMap, id: str, key: str | None
) -> Call[tuple[str, Sequence[Sequence[Ops]]]]:
    table = map.table
    found = map.where(id, key)  # checks both
    return map.where(id, key) if (yield from map.look(table)) else found


def answers(
    map: OneShard | ShardMap, id: str, key: str | None, op: Callable[[Ops, str], Op[R]]
) -> Call[list[R]]:
    name, tiers = yield from where(map, id, key)
    ops = [op(shard, name) for shard in chain(*tiers)]
    return (yield from send_all(ops)) if ops else []


def each(
    map: OneShard | ShardMap, id: str, key: str | None, op: Callable[[Ops, str], Op[bool]]
) -> Call[bool]:
    return any((yield from answers(map, id, key, op)))


def first(
    map: OneShard | ShardMap, name: str, op: Callable[[Ops, str], Op[R | None]]
) -> Call[R | None]:
    own, tiers = yield from where(map, name, name)
    for ops in chain(*tiers):
        if found := (yield from send(op(ops, own))):
            return found
    return None


def every(map: OneShard | ShardMap, op: Callable[[Ops], Op[R]]) -> Call[list[R]]:
    yield from map.look()
    return (yield from send_all([op(ops) for ops in map.ordered()]))


def total(
    map: OneShard | ShardMap,
    call: Callable[[Ops, Sequence[str]], Call[int]],
    ids: Sequence[str] = (),
) -> Call[int]:
    for one in ids:
        job_id(one)
    yield from map.look()
    done = 0
    for ops, names in map.holders(ids):
        done += yield from call(ops, names)
    return done
