"""Bugs planted in the scripts. The model must find each."""

from __future__ import annotations

from collections.abc import Sequence

from headrace._core.shards import reshard as resharding, transfer as handing
from tests.support.planted import EVERYBODY, UNWOKEN, Edit

MUTANTS: dict[str, Sequence[Edit]] = {
    "a release spends an attempt": [
        ("release", "redis.call('HINCRBY', q.released, entries[i], 1)", "local _ = i")
    ],
    "a renewal asks no owner": [
        ("renew", " = held_by(jobs, worker, entries, counts)\nfor", " = entries\nfor")
    ],
    "a retry forgets the deliveries": [
        ("retry", "id, string.format('%.0f', deliveries)", "id, '1'")
    ],
    "a retry has one attempt too many": [
        ("retry", "deliveries - free >= max_attempts", "deliveries - free > max_attempts")
    ],
    "a dead letter keeps its id": [
        ("dead_letter", "if #free > 0 then redis.call('HDEL', q.ids, unpack(free)) end", "")
    ],
    "a mended letter keeps its payload": [
        ("redrive", "if payload ~= '' then", "if payload == true then")
    ],
    "a redriven letter stays beside its job": [
        ("redrive", "    redis.call('XDEL', dead, letter)\n", "")
    ],
    "dead letters are trimmed uncounted": [("*", "if trimmed > 0 then", "if trimmed > 1000 then")],
    "a cancelled job keeps its id": [
        ("cancel", "if #free > 0 then redis.call('HDEL', q.ids, unpack(free)) end", "")
    ],
    "everybody completes": EVERYBODY,
    "the fence lets all through": [
        (
            "complete",
            "worker ~= '' and held_by(jobs, worker, entries,",
            "worker == true and held_by(jobs, worker, entries,",
        )
    ],
    "an earlier result answers for a cancelled job": [
        ("result", "if kept and noted and", "if noted == true and")
    ],
    "a new job of a cancelled id has no result": [
        ("*", "if q.anew then redis.call('ZREM',", "if false then redis.call('ZREM',")
    ],
    "the loser's result is kept": [("complete", "elseif reply[number] == 1 then", "else")],
    "the loser's follow-ups are enqueued": [
        ("complete", "if reply[job.of] == 1 then", "if reply then")
    ],
    "no record of calls": [
        ("*", "if kept and string.sub(kept, 1, #call + 1) == call .. ' ' then", "if false then")
    ],
    "no record of leases": [("lease", "if known then -- the", "if false then -- the")],
    "new jobs overtake parked ones": [
        (
            "lease",
            "if #q.parked > 0 or heir then older.front(q, 'parked') end",
            "if #q.parked > 2 or heir then older.front(q, 'parked') end",
        )
    ],
    "an entry that woke a reader is not adopted": [
        ("lease", "  older.front(q, 'idle')\n", ""),
        UNWOKEN,
    ],
    "a job has one delivery too many": [
        (
            "lease",
            "(attempt - deaths > q.max_attempts or",
            "(attempt - deaths > q.max_attempts + 1 or",
        )
    ],
    "innocents die beside a poison job": [
        (
            "lease",
            "(attempt - deaths > q.max_attempts or",
            "(attempt > q.max_attempts or",
        )
    ],
    "a retry spends deaths": [
        ("retry", "deliveries - free >= max_attempts", "deliveries - releases >= max_attempts")
    ],
    "a death is not counted": [
        (
            "*",
            "if #changed > 0 then redis.call('HSET', deaths,",
            "if false then redis.call('HSET', deaths,",
        )
    ],
    "others run beside a suspect": [
        ("lease", "if suspects.deaths(q.deaths, row[1], q", "if suspects.deaths(q.deaths, '', q")
    ],
    "poison never ends": [("lease", "or deaths >= suspects.AT_MOST) then", "or false) then")],
    "suspects come before others": [("lease", "apart == '2' and 0 or lease", "0")],
    "a suspect is one of several": [
        ("lease", "  q.limit = 1\n  for _ = 1, row", "  for _ = 1, row")
    ],
    "poison comes before innocents": [
        ("lease", "if number < fewest and", "if (not first or number >= fewest) and")
    ],
    "due jobs are promoted the last first": [
        (
            "*",
            "  for i, id in ipairs(due) do\n",
            "  for k = 1, #due / 2 do due[k], due[#due + 1 - k] = due[#due + 1 - k], due[k] end\n"  # noqa: ISC004
            "  for i, id in ipairs(due) do\n",
        )
    ],
    "a promoted job keeps its old place in ids": [
        ("*", "if had == id then named[#named + 1], named[#named + 2] = id, entry end", "")
    ],
    "everybody may declare others dead": [
        ("reclaim", "now - since >= timeout and (now >= quiet and now or before) or nil", "now")
    ],
    "an expired lease stays": [
        (
            "reclaim",
            "local ids = finish(q, expired, {budget = budget, listening = listening})\n",
            "local ids = {}\n",
        )
    ],
    "a parked job comes before all levels": [
        ("*", "level_at[i] = body and level_of(body[2], deepest)", "level_at[i] = 0")
    ],
    "a job keeps its place in ids as its turn comes": [
        ("*", "if not registered or registered == names[i] then", "if not had[i] then")
    ],
    "a job forgets its releases as its turn comes": [
        ("*", "redis.call('HLEN', q.released) > 0\n  for", "false\n  for")
    ],
    "a retry forgets the level": [
        (
            "retry",
            "key = append(q, ",
            "key = append({jobs = jobs, stats = stats, levels = {n = 0}}, ",
        )
    ],
    "a job of a later level can't be cancelled": [
        ("cancel", "number = stream and redis", "number = stream == q.jobs and redis")
    ],
    "a job that has begun is replaced": [
        (
            "enqueue_if",
            "  if job.spent > (tonumber(job.releases or 0) or 0) then return nil end\n",
            "",
        )
    ],
    "a replaced job has its old payload": [
        ("enqueue_if", "own, headers = parse(job.fields)", "local _ = parse(job.fields)")
    ],
    "a replaced job forgets its releases": [
        ("enqueue_if", "if job.releases then redis", "if false then redis")
    ],
    "one more waits than may": [("enqueue_if", "room < 1 then outcome", "room < 0 then outcome")],
    "what is there needs room": [("enqueue_if", "math.max(0, most - waiting)", "most - waiting")],
    "a throttled job is added": [
        ("enqueue_if", "not (job.unique or job.throttle)", "not job.unique")
    ],
    "an id is free with its job": [
        ("complete", "id ~= '' then keep_until", "id == 'none' then keep_until")
    ],
    "a purge leaves ids behind": [("purge", "  redis.call('HDEL', q.ids, unpack(ids))\n", "")],
}

SCHEDULES: dict[str, Sequence[Edit]] = {
    "a paused schedule fires": [
        ("pause_schedule", "paused and due + 2e14 or", "paused and due or")
    ],
    "a resume plans no tick": [
        ("pause_schedule", "redis.call('ZADD', ticks,", "if paused then redis.call('ZADD', ticks,"),
        ("pause_schedule", "due - 2e14), name)\n", "due - 2e14), name) end\n"),
    ],
    "a resume forgets the ticks of the pause": [
        (
            "pause_schedule",
            "or due - 2e14)",
            "or math.max(due - 2e14, redis.call('TIME')[1] * 1000 + 3600000))",
        )
    ],
    "a schedule that is replaced resumes": [
        ("schedule", "is_paused_tick(next) and string.format('%.0f', due + 2e14) or due", "due")
    ],
    "a schedule that is replaced starts again": [
        ("schedule", "if old_timing ~= timing or next < 0 then", "do")
    ],
    "a run by hand moves the next tick": [
        (
            "run_schedule",
            "if listening.added then",
            "redis.call('ZINCRBY', ticks, 1, name)\nif listening.added then",
        )
    ],
    "a run by hand resumes": [
        (
            "run_schedule",
            "if listening.added then",
            "if due >= 2e14 then redis.call('ZINCRBY', ticks, -2e14, name) end\nif listening.added then",
        )
    ],
    "no paused schedule runs by hand": [
        ("run_schedule", "due >= 1e14 and due < 2e14 or", "due >= 1e14 or")
    ],
    "a lost reply runs a schedule twice": [
        ("run_schedule", "if known then return known end\n", "")
    ],
    "a run by hand is not kept": [
        ("run_schedule", "string.format('%.0f ', now) .. id()}))", "false}))")
    ],
    "a tick is not kept": [("tick", "if last then redis", "if false then redis")],
    "a schedule that is replaced forgets its last run": [
        ("schedule", "fields)}, last}", "fields)}}")
    ],
}
"""Bugs in the scripts of schedules; see `recurring`."""

HAND_OVER: dict[str, list[tuple[str, str, str]]] = {
    "no tombstone": [("accept", "not redis.call('ZSCORE', handed, job.nonce)", "true")],
    "a tombstone goes at once": [("close", "now + 600000", "now - 1")],
    "a tombstone goes as it comes": [("accept", "now + OPEN)", "now - 1)")],
    "what was read long ago is taken": [
        ("accept", "if now - since > READ_WITHIN then", "if false then")
    ],
    "who loses leaves follow-ups, too": [
        ("complete", "if reply[job.of] == 1 then\n    local due", "if true then\n    local due")
    ],
    "what has come stays in the outbox": [
        ("hand", "redis.call('HDEL', outbox, unpack(names))", "")
    ],
    "what has come is not closing": [("hand", "redis.call('ZADD', closing, unpack(kept))", "")],
    "nothing is closed": [("close", "redis.call('ZADD', handed, 'XX', unpack(moments))", "")],
    "what is over stays": [("hand", "redis.call('ZREM', closing, unpack(gone))", "")],
}
"""Bugs in the scripts by which jobs go to other shards; see `hand_over`."""

RESHARDING: dict[str, list[tuple[str, str, str]]] = {
    "no seal": [("seal", "redis.call('HSET', stats, 'shards', version)", "")],
    "what is sealed takes jobs": [
        ("enqueue", "if listening.sealed then error", "if false then error")
    ],
    "a shard goes with its jobs": [
        ("drained", "if left > 0 or not kept[1] then", "if not kept[1] then")
    ],
    "a shard that is gone forgets that it was sealed": [
        ("wipe", "if field ~= 'shards' then", "if true then")
    ],
    "no id is present": [("present", "redis.call('HEXISTS', ids, ARGV[i])", "0")],
}
"""Bugs in the scripts by which the number of shards changes; see `resharding`."""

RESHARDING_IN_MODULES = {
    "the table says so before they are sealed": (
        resharding, "yield from known.change(table, table.divided(shards))",
        "yield from known.change(table, table.divided(shards).handed_over())",
    ),
}  # fmt: skip
"""The same in what changes it."""

HAND_OVER_IN_MODULES = {
    "what did not come leaves the outbox": (
        handing, "if not answered:\n                return None", "if not answered:\n                return frozenset()"
    ),
    "what was refused leaves the outbox": (
        handing, "self.late = True\n                return None", "self.late = True\n                return frozenset()"
    ),
}  # fmt: skip
"""The same in what sends."""


# Found by walks over ordered queues.
ORDERED: dict[str, Sequence[Edit]] = {
    "a job behind another is handed out": [
        (
            "lease",
            "  q.places[#q.places + 1], q.places[#q.places + 2] = 0, place_behind(key, entry)\n  return false",
            "  return true",
        )
    ],
    "a turn is not noted": [
        (
            "lease",
            "    q.turns_set[#q.turns_set + 1], q.turns_set[#q.turns_set + 2] = 'k' .. key, entry\n",
            "",
        )
    ],
    "a turn is not passed on": [("*", "  pass_turns(q, over)\n", "")],
    "the last of a key is the next": [
        (
            "*",
            "'ZRANGEBYLEX', q.behind, '[' .. of_key(key), '(' .. of_key(key) .. '\\255', 'LIMIT', 0, 1)",
            "'ZREVRANGEBYLEX', q.behind, '(' .. of_key(key) .. '\\255', '[' .. of_key(key), 'LIMIT', 0, 1)",
        )
    ],
    "entries are in the order of text": [
        ("*", "string.char(96 + #number) .. number", "'a' .. number")
    ],
    "a retried job goes to the back": [
        ("retry", "redis.call('HGET', turns, 'e' .. entry)", "false")
    ],
    "a retry in its place spends nothing": [
        (
            "retry",
            "released = free > 0 and string.format('=%.0f', free)",
            "released = string.format('=%.0f', free + 1)",
        )
    ],
    "a retry in its place forgets earlier attempts": [
        ("retry", "    tried.add(turns, entry, own_fields)\n", "")
    ],
    "a completed job forgets its attempts": [
        ("complete", "read[i] = tried.fields(turns, entries[i], read[i])", "read[i] = read[i]")
    ],
    "one that is behind keeps its place when it is cancelled": [
        ("*", "  in_parts(left, function(...) redis.call('ZREM', q.behind, ...) end)\n", "")
    ],
    "complete forgets no turn": [
        ("complete", "  if q.turns then forget_turns(q, names) end\n", "")
    ],
    "the plain way forgets no turn": [
        (
            "complete",
            "redis.call('EXISTS', leases, released, limited, turns, steps, held, with_ids",
            "redis.call('EXISTS', leases, released, limited, with_ids",
        )
    ],
    "an entry that is yet to be read loses its turn": [
        ("reclaim", "lost = holds.place(head) <= last", "lost = true")
    ],
    "the next of a buried job waits for another call": [
        ("lease", "q.heads, q.passed = {}, true end -- the next", "end -- the next")
    ],
}
