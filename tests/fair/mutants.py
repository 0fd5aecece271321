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
"""The replacement, and the way that finds it ('': the ordered job)."""

# Bugs of the picks, which the machine must find.
PICKS: dict[str, Sequence[Edit]] = {
    "an end keeps its entry in held": [("*", "redis.call('HDEL', q.held, unpack(names))", "")],
    "an end keeps its slots": [("*", "redis.call('ZREM', q.slots, unpack", "type(unpack")],
    "a release keeps its slot": [("*", "  if q.held then holds.give_back(q, entries) end\n", "")],
    "an end is not measured": [("*", "redis.call('RPUSH', q.settled", "type(q.settled")],
    "idle values get credit": [
        ("lease_fair", "it.at = math.max(it.at, parent.virtual)", "it.at = it.at + 0"),
        ("lease_fair", "it.news, it.at = 0, math.max(it.at, virtual)", "it.news = 0"),
    ],
    "no debt is kept": [
        ("lease_fair", "it.at = math.max(it.at, parent.virtual)", "it.at = parent.virtual"),
        ("lease_fair", "it.news, it.at = 0, math.max(it.at, virtual)", "it.news, it.at = 0, virtual"),
    ],
    "the virtual time never goes back": [
        ("lease_fair", "it.parent.moved = it.at, true", "it.parent.moved = math.max(it.at, it.parent.virtual), true")
    ],
    "the correction is of the organisation only": [
        ("lease_fair", "if not ended.costed then it.at", "if not ended.costed and not it.value then it.at"),
        ("lease_fair", "it.at = math.max(0, it.at + (ran - ends[i][3]) / it.weight)", ""),
    ],
    "a cost is measured": [("lease_fair", "if not ended.costed then it.at", "if true then it.at")],
    "a stopped line stays stopped": [("lease_fair", "for _, slot in ipairs(freed) do", "for _, slot in ipairs({}) do")],
    "a higher limit wakes no line": [("declare_terms", "redis.call('HSET', terms, 'again', '')", "")],
    "weights divide twice": [
        ("lease_fair", "it.at + charge / it.weight", "it.at + charge / it.weight / it.weight"),
        ("lease_fair", "it.at + its_charge / it.weight", "it.at + its_charge / it.weight / it.weight"),
    ],
    "jobs that are not picked are lost": [
        ("lease_fair", "in_parts(filed, function(...) redis.call('ZADD', q.lines, ...) end)", "")
    ],
    "slots are not counted": [("lease_fair", "if slot.used >= slot.most then", "if false then")],
    "a limit admits one too many": [("lease_fair", "if slot.used >= slot.most then", "if slot.used > slot.most then")],
    "the queue has no limit": [("lease_fair", "t.most - redis.call('HLEN', held)", "t.most")],
    "each job of a batch pays for all": [
        ("lease_fair", "1000 * (ended - since) / number", "1000 * (ended - since)"),
        ("lease_fair", "1000 * (when - since) / number", "1000 * (when - since)"),
    ],
    "means are not learned": [("lease_fair", "it.mean = math.max(1, before + (ran - before) / 8)", "it.mean = 0")],
    "a job that came back waits for its line": [
        ("lease_fair", "if front and (not kept or front.place <", "if front and not kept and (true or front.place <")
    ],
    "a batch of one value is of several": [("lease_fair", "if same and q.picks[1] then", "if false then")],
    "an empty queue leaves its shares": [("lease_fair", "redis.call('UNLINK', shares, ready, stopped, resting)", "")],
    "a value is forgotten while a job is leased": [
        ("lease_fair", "it.alive or it.running > 0 or it.at", "it.alive or it.at"),
        ("lease_fair", "if it.running > 0 or it.at > last then", "if it.at > last then"),
    ],
    "the last by name goes first": [("lease_fair", "a.at < b.at or a.at == b.at and a.key < b.key", "a.key > b.key")],
    "a lease from lines forgets what ended": [
        ("lease_fair", "  filing.ends(q)\n  reading.at_new(q, q.reader)\n", "  reading.at_new(q, q.reader)\n")
    ],
    "a lease from lines looks at no new job": [
        ("lease_fair", "  filing.ends(q)\n  reading.at_new(q, q.reader)\n", "  filing.ends(q)\n")
    ],
    "a value that was refunded keeps its place": [
        ("lease_fair", "if ended.line.value.alive then picking.join(ended.line.value) end", "")
    ],
    "a value that is charged more keeps its place": [("lease_fair", "q.limit + 1 + q.later", "q.limit + 1")],
    "the first value takes all": [("lease_fair", "alone = alone and not path[i].heap[2]", "alone = true")],
    "the short way charges nobody": [
        ("lease_fair", "it.at + its_charge / it.weight), it.running + 1", "it.at), it.running + 1")
    ],
}
