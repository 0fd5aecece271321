"""Bugs planted in the scripts of queues with terms, and the storm's complaint."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.planted import Edit

MUTANTS: dict[str, tuple[Sequence[Edit], tuple[str, ...]]] = {
    "completion keeps the slot": ([("complete", "redis.call('HDEL', q.held, unpack(names))", "")], ("law",)),
    "a reclaim keeps the slot": (
        [
            ("reclaim", "  if q.held then holds.give_back(q, entries) end\n", ""),
            ("reclaim", "forget_stale_slots(q, 20)\n", ""),
        ],
        ("law",),
    ),
    "the last by name goes first": (
        [("lease_fair", "a.at < b.at or a.at == b.at and a.key < b.key", "a.key > b.key")],
        ("shares",),
    ),
    "slots are not counted": ([("lease_fair", "if slot.used >= slot.most then", "if false then")], ("limit",)),
}
