"""Bugs planted in the scripts of queues with terms. The storm has a complaint for each, and the
tests of slots find them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.planted import Edit

MUTANTS: dict[str, tuple[Sequence[Edit], tuple[str, ...]]] = {
    "completion keeps the slot": (
        [("complete", "redis.call('HDEL', q.held, unpack(names))", "")],
        ("law",),
    ),
    "a reclaim keeps the slot": (
        [
            ("reclaim", "  if q.held then holds.give_back(q, entries, how) end\n", ""),
            ("reclaim", "forget_stale_slots(q, 20)\n", ""),
        ],
        ("law",),
    ),
    "the old come before all newcomers": (
        [("lease_fair", "picking.head(q, node, node.turn) or", "picking.head(q, node, 'o') or")],
        ("shares",),
    ),
    "slots are not counted": (
        [("lease_fair", "if picking.used(q, slot) >= slot.most then", "if false then")],
        ("limit",),
    ),
}

GIVE_BACK = "holds.give_back(q, "
UNMENDED: Edit = ("reclaim", "forget_stale_slots(q, 20)\n", "")  # or the same sweep mends it
SLOTS: dict[str, tuple[Sequence[Edit], str]] = {
    "completed": (
        [("complete", "turns, steps, held, with_ids", "turns, steps, with_ids")],
        "completed",
    ),
    "completed by its holder": (
        [("complete", f"if q.held then {GIVE_BACK}names) end", "")],
        "completed by its holder",
    ),
    "noted by no key": (
        [("complete", "released, limited, turns, held) == 0", "released, limited, turns) == 0")],
        "completed by its holder",
    ),
    "moved on by a flow": (
        [("flow_advance", f"if q.held then {GIVE_BACK}names) end", "")],
        "moved on by a flow",
    ),
    "dead": ([("dead_letter", f"if q.held then {GIVE_BACK}names) end", "")], "dead"),
    "retried at once": (
        [("retry", f"if q.held then {GIVE_BACK}names) end", "")],
        "retried at once",
    ),
    "retried at its entry": ([("retry", f"if q.held then {GIVE_BACK}entries, how) end", "")], ""),
    "released": ([("release", f"if q.held then {GIVE_BACK}entries, how) end", "")], "released"),
    "released with a pause": (
        [("release", f"if q.held then {GIVE_BACK}", f"if q.held and not how.due then {GIVE_BACK}")],
        "released with a pause",
    ),
    "cancelled": ([("cancel", f"if q.held then {GIVE_BACK}names) end", "")], "cancelled"),
    "ended by an operator": (
        [("expire", f"if q.held then {GIVE_BACK}entries, how) end", "")],
        "ended by an operator",
    ),
    "expired": (
        [UNMENDED, ("reclaim", f"if q.held then {GIVE_BACK}entries, how) end", "")],
        "expired",
    ),
    "expired, all alike": (
        [UNMENDED, ("reclaim", "finish(q, expired, {parked = true})", "")],
        "expired, all alike",
    ),
    "asleep": ([("suspend", f"if q.held then {GIVE_BACK}entries, how) end", "")], "asleep"),
    "the worker leaves": (
        [("leave", f"if q.held then {GIVE_BACK}entries, how) end", "")],
        "the worker leaves",
    ),
    "the worker dies": (
        [UNMENDED, ("reclaim", f"if q.held then {GIVE_BACK}entries, how) end", "")],
        "the worker dies",
    ),
    "the group is lost": (
        [UNMENDED, ("reclaim", "redis.call('DEL', q.held, q.slots, q.stopped)", "")],
        "the group is lost, and made again",
    ),
    "an older worker": ([UNMENDED], "an older worker completes them, and others sweep"),
    "the slot stays": (
        [("complete", "redis.call('ZREM', q.slots,", "redis.call('ZSCORE', q.slots,")],
        "completed",
    ),
    "freed twice": (
        [("retry", "redis.call('HDEL', q.held, unpack(names))", "")],
        "retried at once",
    ),
    "a line is forgotten with its reader": (
        [("reclaim", "if redis.call('EXISTS', lines) == 1 then wake_one(wake) end", "")],
        "a line",
    ),
    "nobody is woken": (
        [
            (
                "complete",
                "if limited and redis.call('EXISTS', q.stopped) == 1 then wake_one(q.wake) end",
                "",
            )
        ],
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
    "a release keeps its slot": [
        ("*", "  if q.held then holds.give_back(q, entries, how) end\n", "")
    ],
    "an end is not measured": [("*", "redis.call('RPUSH', q.settled", "type(q.settled")],
    "newcomers starve the old": [
        (
            "lease_fair",
            "if had then parent.turn = from == 'n' and picking.head(q, parent, 'o') and 'o' or 'n' end",
            "if had then parent.turn = 'n' end",
        )
    ],
    "the old starve newcomers": [
        (
            "lease_fair",
            "if had then parent.turn = from == 'n' and picking.head(q, parent, 'o') and 'o' or 'n' end",
            "if had then parent.turn = 'o' end",
        )
    ],
    "the name decides": [
        (
            "lease_fair",
            "a.round < b.round or a.round == b.round and a.seq < b.seq",
            "(a.key or '') < (b.key or '')",
        )
    ],
    "the last comes first": [
        (
            "lease_fair",
            "a.round == b.round and a.seq < b.seq",
            "a.round == b.round and a.seq > b.seq",
        )
    ],
    "debt for ever": [
        (
            "lease_fair",
            "math.max(-it.quantum, math.min(it.quantum,",
            "math.max(-1e15, math.min(it.quantum,",
        )
    ],
    "credit for ever": [
        (
            "lease_fair",
            "math.max(-it.quantum, math.min(it.quantum,",
            "math.max(-it.quantum, math.min(1e15,",
        )
    ],
    "credit is kept by those who leave": [
        (
            "lease_fair",
            "owed = it.parent, it.ring, math.max(0, -it.credit)",
            "owed = it.parent, it.ring, -it.credit",
        )
    ],
    "no debt is kept": [
        (
            "lease_fair",
            "owed = it.parent, it.ring, math.max(0, -it.credit)",
            "owed = it.parent, it.ring, 0",
        )
    ],
    "who comes back is new": [
        (
            "lease_fair",
            "if not it.known then it.ring, it.round, it.credit",
            "if true then it.ring, it.round, it.credit",
        )
    ],
    "debt is forgotten by those who leave": [
        ("lease_fair", "'o', math.max(it.round, parent.base)", "'o', parent.base")
    ],
    "a newcomer is visited twice": [
        (
            "lease_fair",
            "from == 'n' and picking.head(q, parent, 'o') and 'o'",
            "from == 'n' and 'o'",
        )
    ],
    "a round never ends": [
        ("lease_fair", "if it and it.ring == 'o' and node.base ~= it.round then", "if false then")
    ],
    "the correction is of the organisation only": [
        (
            "lease_fair",
            "if not costed then it.credit",
            "if not costed and not it.value then it.credit",
        ),
    ],
    "a visit is one job": [
        ("lease_fair", "or not (same or has_credit(node))", "or not same"),
        (
            "lease_fair",
            "elseif node.credit <= 0 then picking.over(",
            "elseif not same then picking.over(",
        ),
    ],
    "a visit of a user is none of its organisation": [
        (
            "lease_fair",
            "it.changed = it.credit - charge, it",
            "it.changed = it.credit - (it.value and charge or 0), it",
        )
    ],
    "a slot lets in two": [
        (
            "lease_fair",
            "do picking.let_in(q, freed[i]) end",
            "do picking.let_in(q, freed[i]) picking.let_in(q, freed[i]) end",
        )
    ],
    "the last of a limit's line comes first": [
        (
            "lease_fair",
            "redis.call('ZRANGEBYLEX', q.stopped, '[' .. slot .. ' ', '(' .. slot .. '!', 'LIMIT', 0, 1)",
            "redis.call('ZREVRANGEBYLEX', q.stopped, '(' .. slot .. '!', '[' .. slot .. ' ', 'LIMIT', 0, 1)",
        )
    ],
    "a slot is not passed on": [
        (
            "lease_fair",
            "if picking.used(q, slot) < slot.most then picking.let_in(q, slot.key) end",
            "",
        )
    ],
    "a value is left behind": [
        ("lease_fair", "stays = it.ring ~= '' or it.running > 0 or not it.parent", "stays = true")
    ],
    "a cost is measured": [
        ("lease_fair", "if not costed then it.credit", "if true then it.credit")
    ],
    "a stopped line stays stopped": [
        ("lease_fair", "do picking.let_in(q, freed[i]) end", "do tostring(freed[i]) end")
    ],
    "a higher limit wakes no line": [
        ("declare_terms", "redis.call('HSET', terms, 'again', '')", "")
    ],
    "a paused value is leased": [("lease_fair", "if line.halted then return false end", "")],
    "a pause is of the organisation only": [
        ("lease_fair", "for i = 1, math.min(#ends, math.max(1, q.t.depth)) do", "for i = 1, 1 do")
    ],
    "a resumed value stays stopped": [
        ("lease_fair", "if q.t.resumed then looking.at_resumed(q) end", "")
    ],
    "the first line of a resumed value alone": [
        ("lease_fair", "some[1] and left > 0 do", "some[1] and left > 99 do"),
        ("lease_fair", "if some[1] then\n", "if false then\n"),
    ],
    "a weight counts twice": [
        (
            "lease_fair",
            "picking.QUANTUM * tonumber(weights[i])",
            "picking.QUANTUM * tonumber(weights[i]) * tonumber(weights[i])",
        )
    ],
    "jobs that are not picked are lost": [
        ("lease_fair", "in_parts(filed, function(...) redis.call('ZADD', q.lines, ...) end)", "")
    ],
    "slots are not counted": [
        ("lease_fair", "if picking.used(q, slot) >= slot.most then", "if false then")
    ],
    "a limit admits one too many": [
        (
            "lease_fair",
            "if picking.used(q, slot) >= slot.most then",
            "if picking.used(q, slot) > slot.most then",
        )
    ],
    "a value has no limit of its own": [
        ("lease_fair", "agreed.own(q.terms, slot, name) or slot.most", "slot.most")
    ],
    "the queue has no limit": [("lease_fair", "t.most - redis.call('HLEN', held)", "t.most")],
    "each job of a batch pays for all": [
        ("lease_fair", "1000 * (ended - since) / number", "1000 * (ended - since)"),
    ],
    "means are not learned": [
        ("lease_fair", "if it.known then it.mean =", "if false then it.mean =")
    ],
    "a job that came back waits for its line": [
        (
            "lease_fair",
            "if front and (not kept or front.place <",
            "if front and not kept and (true or front.place <",
        )
    ],
    "a batch of one value is of several": [
        ("lease_fair", "or not (same or has_credit(node))", "or not has_credit(node)"),
        ("lease_fair", "      if same then return end\n", ""),
    ],
    "an empty queue leaves its shares": [
        ("lease_fair", "redis.call('UNLINK', shares, ready, stopped, resting)", "")
    ],
    "a value is forgotten while a job is leased": [
        ("lease_fair", "it.ring ~= '' or it.running > 0 or not", "it.ring ~= '' or not")
    ],
    "a value is forgotten while a job waits": [
        ("lease_fair", "if not stays and it.changed and q.has_lines then", "if false then")
    ],
    "a visit takes all": [("lease_fair", "or not (same or has_credit(node))", "")],
    "a ring is read once": [
        (
            "lease_fair",
            "ring.further, ring.last = #rows == most, rows[#rows]",
            "ring.further, ring.last = false, rows[#rows]",
        )
    ],
    "a picked job is charged nothing": [
        (
            "lease_fair",
            "it.credit, it.running, it.changed = it.credit - charge",
            "it.credit, it.running, it.changed = it.credit",
        )
    ],
}
