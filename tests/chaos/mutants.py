"""Scripts that are changed inside the processes of the harness. The server counts their decisions,
and bugs are planted.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from tests.support.planted import EVERYBODY, ROOMS, UNWOKEN, Edit, planted

PLAIN = ["producer", "producer with ids", "loop", "loop", "threads", "tasks", "batches"]
FLOW = ["runs", "hand", "flow threads", "flow tasks"]
DAWDLE = 0.01  # of so many jobs, a loop takes longer than its lease
CAST = [
    "producer",
    "producer with ids",
    "loop",
    "loop",
    "batches",
    "operator",
    "metered",
    "metered",
    *FLOW,
]

# Every script that decides an end counts it by id: killing the caller can't hide that a job was
# completed twice. A name of a stage's job is preceded by the stage's.
_NAMED = "local stage = string.match(%s, '/([^/]*):jobs$') local named = (stage and stage .. '|' or '') .. %s "
_COUNT = "redis.call('HINCRBY', 'chaos:%s', %s, 1)\n"
_TO_OTHERS = (
    "if how.to then hand_to(q.jobs, how.to, entries) else ids = to_front(q, entries, how) end"
)
_GRANTED = "redis.call('HINCRBY', 'chaos:granted', string.format('%.0f', math.floor(now / 1000)), #entries)"
_JOINED = "      redis.call('HINCRBY', q.stats, 'completed', 1)\n      histories.note(q, 'completed', parent, "
_MOVED = (
    "    redis.call('HINCRBY', q.stats, 'completed', 1)\n"
    "    histories.note(q, 'completed', id, more)\n    return 1\n"
)
_CHILDLESS = "    redis.call('HINCRBY', q.stats, 'completed', 1)\n    more.fields = "
_GONE_ON = (
    "    redis.call('HINCRBY', q.stats, 'completed', 1)\n"
    "    histories.note(q, 'completed', id, more)\n    if what"
)
_FANNED = "  local which = get(run, 'fan', id) or '1'\n"

COUNTED: Sequence[Edit] = [
    (
        "complete",
        "if won > 0 then redis",
        f"""for i = 1, limit do
  local name = with_ids and ARGV[names + i - 1] or ''
  {_NAMED % ("jobs", "(name ~= '' and name or entries[i])")}
  if reply[i] == 1 then {_COUNT % ("won", "named")} end
end
if won > 0 then redis""",
    ),
    (
        "complete",
        "if won ~= 0 then redis",
        f"""for i = 1, limit do
  local name = with_ids and ARGV[items + limit + i - 1] or ''
  {_NAMED % ("jobs", "(name ~= '' and name or ARGV[items + i - 1])")}
  if reply[i] == 1 then {_COUNT % ("won", "named")} end
end
if won ~= 0 then redis""",
    ),
    (
        "lease",
        "pace.spend(q.rates, q.limits, q.exact, #entries)\n",
        f"pace.spend(q.rates, q.limits, q.exact, #entries)\nif #q.limits > 0 then {_GRANTED} end\n",
    ),
    *(
        (
            script,
            "if gone == 1 then\n",
            f"if gone == 1 then {_NAMED % ('q.jobs', 'id')} {_COUNT % ('gone', 'named')}\n",
        )
        for script in ("cancel", "flow_advance")
    ),
    ("flow_advance", _JOINED, _COUNT % ("won", "at.stage .. '|' .. parent") + _JOINED),
    ("flow_advance", _CHILDLESS, _COUNT % ("won", "job.stage .. '|' .. id") + _CHILDLESS),
    ("flow_advance", _MOVED, _COUNT % ("won", "stage .. '|' .. id") + _MOVED),
    ("flow_advance", _GONE_ON, _COUNT % ("won", "stage .. '|' .. id") + _GONE_ON),
    ("flow_advance", _FANNED, _COUNT % ("won", "'fan|' .. id") + _FANNED),
]


@frozen
class Mutant:
    """A bug with the complaint that the judge must make."""

    edits: Sequence[Edit]
    complaint: str
    cast: Sequence[str] = PLAIN
    dawdle: float = DAWDLE


# it is loops that tell what they asked for as holders
LOOPS = ["producer", "producer with ids", *["loop"] * 5]
OFTEN = 0.1  # so that their leases expire, and others have the jobs, when they settle them
LATE = [*["producer with ids"] * 3, "loop"]  # and producers that cancel and reschedule
HELD = [*["producer with ids"] * 3, *["loop"] * 4]  # and cancel what these hold
OPERATED = ["producer", "producer with ids", "loop", "loop", *["operator"] * 4]
METERED = ["metered"] * 3
# and workers that are found dead
WORKERS = ["producer", "producer with ids", "threads", "threads", "tasks", "batches"]


def unfenced(script: str) -> Mutant:
    """Return an edit that removes the check of the owner."""
    return Mutant(
        [(script, " = held_by(jobs, worker, entries, counts)", " = entries")], "fence", LOOPS, OFTEN
    )


MUTANTS = {
    "renewal asks no owner": unfenced("renew"),
    "release asks no owner": unfenced("release"),
    "retry asks no owner": unfenced("retry"),
    "consumer deleted before its jobs are moved": Mutant(
        [
            (
                "reclaim",
                "  local entries = redis.call('XPENDING'",
                "  redis.call('XGROUP', 'DELCONSUMER', jobs, 'workers', name) local entries = redis.call('XPENDING'",
            )
        ],
        "stranded",
        WORKERS,
    ),
    "no record of calls": Mutant(
        [("*", "if kept and string.sub(kept, 1, #call + 1) == call .. ' ' then", "if false then")],
        "twice",
    ),
    "an entry that woke a reader is not adopted": Mutant(
        [("lease", "  older.front(q, 'idle')\n", ""), UNWOKEN], "unheard"
    ),
    "the acknowledgement wins": Mutant(
        # Cancelling removes the entry alone, and completing asks whether it was pending still.
        [
            ("cancel", "redis.pcall('XACK', q.jobs, 'workers', entry)", "0"),
            ("complete", "if worker == '' and follows", "if false and follows"),
            ("complete", "redis.call('XACK', q.jobs, 'workers', unpack(names)) == #names", "false"),
            (
                "complete",
                "number = number + gone[i]",
                "gone[i] = redis.call('XACK', q.jobs, 'workers', names[i])",
            ),
            ("complete", "gone[1] = number", "gone[1] = leased and 1 or 0"),
        ],
        "double",
        HELD,
    ),
    "everybody completes": Mutant(
        EVERYBODY,
        "double",
    ),
    "group created at $": Mutant(
        [("*", "jobs, 'workers', '0', 'MKSTREAM'", "jobs, 'workers', '$', 'MKSTREAM'")], "stranded"
    ),
    "cancelling leaves what is delayed": Mutant(
        [("cancel", "number = redis.call('ZREM', q.delayed, unpack(ids))", "number = 1")],
        "law",
        LATE,
    ),
    "a turn that comes forgets the id": Mutant(
        [("*", "if not registered or registered == names[i] then", "if not had[i] then")],
        "index",
        WORKERS,
    ),
    "promotion forgets releases": Mutant(
        [
            (
                "*",
                "redis.call('EXISTS', q.released) == 1 and redis.call('HMGET', q.released, unpack(names)) or {}",
                "{}",
            )
        ],
        "index",
        WORKERS,
    ),
    "rescheduling does not ask whether it is delayed": Mutant(
        [
            (
                "reschedule",
                "if redis.call('ZREM', delayed, id) == 0 and not take_limited() then return answer(0) end",
                "",
            )
        ],
        "law",
        LATE,
    ),
    "every completion counts the child": Mutant(
        [
            (
                "flow_advance",
                "{ids = {id}}) == 0 then return 0 end",
                "{ids = {id}}) == 0 then if parents.waiting(run, id, job) then end_job(run, id, job) end return 0 end",
            )
        ],
        "astray",
        ["runs", "hand", "hand"],
    ),
    "the join comes a child early": Mutant(
        [
            (
                "flow_advance",
                "'pending:' .. parent, -1) > 0 then",
                "'pending:' .. parent, -1) > 1 then",
            ),
            ("flow_advance", "if tonumber(get(run, 'pending', parent)) > 0 then return end", ""),
        ],
        "join",
        FLOW,
    ),
    "nobody hears of a death": Mutant(
        [
            (
                "*",
                "set_mark(flows, id, what, nonce)\nend",
                "set_mark(flows, id, what == 2 and 0 or what, nonce)\nend",
            )
        ],
        "astray",
        FLOW,
    ),
    "a run is cancelled without its children": Mutant(
        [("flow_advance", "if how == 'blocked' then parents.cancel_children(run, id) end", "")],
        "orphan",
        FLOW,
    ),
    "a retry forgets the id": Mutant(
        [("retry", "if ours then redis.call('HSET', ids, id, 'delayed') end", "")], "index", LOOPS
    ),
    "a release drops the job": Mutant(
        [
            (
                "release",
                _TO_OTHERS,
                """for i = 1, #entries do
  redis.call('XACK', q.jobs, 'workers', entries[i])
  redis.call('XDEL', q.jobs, entries[i])
end""",
            )
        ],
        "law",
        LOOPS,
    ),
    "a release leaves the job with nobody": Mutant(
        [
            (
                "release",
                _TO_OTHERS,
                "if #entries > 0 then redis.call('XACK', q.jobs, 'workers', unpack(entries)) end",
            )
        ],
        "stranded",
        LOOPS,
    ),
    "a batch loses its last": Mutant(
        [
            (
                "enqueue",
                "for i = items + 1, #ARGV do",
                "for i = items + 1, #ARGV do if i == #ARGV then redis.call('XDEL', jobs, first) end",
            )
        ],
        "law",
    ),
    "follow-ups come for losers, too": Mutant(
        [("complete", "if reply[job.of] == 1 then", "if true then")], "loser", LOOPS
    ),
    "an id that lives is free": Mutant(
        [
            (
                "enqueue",
                "if q.later then return q.later.taken[id] end",
                "if q.later then return false end",
            )
        ],
        "twice",
        LOOPS,
    ),
    "expiry forgets the term of the lease": Mutant(
        [("expire", "redis.call('ZREM', q.leases, unpack(entries))", "")], "index", OPERATED
    ),
    "a failed worker's jobs are acknowledged": Mutant(
        [
            (
                "fail_worker",
                "  local ids = finish(q, entries, {died = true, budget = budget, listening = listening})\n",
                "  local ids = {}\n  if #entries > 0 then redis.call('XACK', jobs, 'workers', unpack(entries)) end\n",
            )
        ],
        "stranded",
        OPERATED,
    ),
    "a dead letter is not kept": Mutant(
        [("dead_letter", "redis.call('XADD', dead, '*', unpack(letter))", "'1-1'")], "law", LOOPS
    ),
    "a rate spends nothing": Mutant([("lease", "jobs * limit.step", "0")], "rate", METERED),
    "a schedule stands still": Mutant(
        [("tick", "redis.call('ZADD', ticks, next, name)", "redis.call('ZADD', ticks, due, name)")],
        "double",
        METERED,
    ),
    "a promotion comes twice": Mutant(
        [
            (
                "*",
                "  redis.call('ZREM', q.delayed, unpack(names))\n  redis.call('HDEL', q.bodies, unpack(names))\n",
                "",
            )
        ],
        "law",
        LATE,
    ),
}


def install(mutant: str | None) -> None:
    """Change the scripts of this process for its whole life."""
    changed = planted([*COUNTED, *(MUTANTS[mutant].edits if mutant else ())])
    for room in ROOMS:
        room.script = changed
