"""Bugs planted in the scripts of queues with terms: for the storm with its complaint, and for the tests of slots."""

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

GIVE_BACK = "holds.give_back(q, "
UNMENDED: Edit = ("reclaim", "forget_stale_slots(q, 20)\n", "")  # or the same sweep mends it
SLOTS: dict[str, tuple[Sequence[Edit], str]] = {
    "completed": ([("complete", "turns, steps, held, with_ids", "turns, steps, with_ids")], "completed"),
    "completed by its holder": ([("complete", f"if q.held then {GIVE_BACK}names) end", "")], "completed by its holder"),
    "noted by no key": (
        [("complete", "released, limited, turns, held) == 0", "released, limited, turns) == 0")],
        "completed by its holder",
    ),
    "moved on by a flow": ([("flow_advance", f"if q.held then {GIVE_BACK}names) end", "")], "moved on by a flow"),
    "dead": ([("dead_letter", f"if q.held then {GIVE_BACK}names) end", "")], "dead"),
    "retried at once": ([("retry", f"if q.held then {GIVE_BACK}names) end", "")], "retried at once"),
    "retried at its entry": ([("retry", f"      {GIVE_BACK}{{entry}})", "")], ""),
    "released": ([("release", f"if q.held then {GIVE_BACK}entries) end", "")], "released"),
    "released with a pause": ([("release", f"{GIVE_BACK}parked)", "")], "released with a pause"),
    "cancelled": ([("cancel", f"if q.held then {GIVE_BACK}names) end", "")], "cancelled"),
    "ended by an operator": ([("expire", f"if q.held then {GIVE_BACK}entries) end", "")], "ended by an operator"),
    "expired": ([UNMENDED, ("reclaim", f"if q.held then {GIVE_BACK}entries) end", "")], "expired"),
    "expired, all alike": ([UNMENDED, ("reclaim", f"{GIVE_BACK}expired)", "")], "expired, all alike"),
    "asleep": ([("suspend", f"{GIVE_BACK}{{entry}})", "")], "asleep"),
    "the worker leaves": ([("leave", f"if q.held then {GIVE_BACK}entries) end", "")], "the worker leaves"),
    "the worker dies": ([UNMENDED, ("reclaim", f"if q.held then {GIVE_BACK}entries) end", "")], "the worker dies"),
    "the group is lost": (
        [UNMENDED, ("reclaim", "redis.call('DEL', q.held, q.slots, q.stopped)", "")],
        "the group is lost, and made again",
    ),
    "an older worker": ([UNMENDED], "an older worker completes them, and others sweep"),
    "the slot stays": ([("complete", "redis.call('ZREM', q.slots,", "redis.call('ZSCORE', q.slots,")], "completed"),
    "freed twice": ([("retry", "redis.call('HDEL', q.held, unpack(names))", "")], "retried at once"),
    "a line is forgotten with its reader": (
        [("reclaim", "if redis.call('EXISTS', lines) == 1 then wake_one(wake) end", "")],
        "a line",
    ),
    "nobody is woken": (
        [("complete", "if redis.call('EXISTS', q.stopped) == 1 then wake_one(q.wake) end", "")],
        "completed",
    ),
    "nobody learns for how long it ran": (
        [("complete", "redis.call('RPUSH', q.settled,", "tostring(q.settled,")],
        "completed",
    ),
}
"""What is wrong, and the way that finds it ('': the ordered job)."""
