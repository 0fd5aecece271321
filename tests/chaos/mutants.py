"""Scripts changed inside the processes of the harness: what they decide counted by the server, and bugs planted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache

from attrs import frozen

from headrace import _flow_ops, _op, _ops

Edit = tuple[str, str, str]
"""The script ('*': every one that has the text), a text of it, and what replaces it."""

PLAIN = ["producer", "producer with ids", "loop", "loop", "threads", "tasks", "batches"]
FLOW = ["runs", "hand", "flow threads", "flow tasks"]
CAST = ["producer", "producer with ids", "loop", "loop", "batches", *FLOW]

# Every script that decides an end counts it by id: killing the caller can't hide that a job was completed twice. A
# name of a stage's job is preceded by the stage's.
_NAMED = "local stage = string.match(%s, '/([^/]*):jobs$') local named = (stage and stage .. '|' or '') .. %s "
_COUNT = "redis.call('HINCRBY', 'chaos:%s', %s, 1)\n"
_JOINED = "      redis.call('HINCRBY', q.stats, 'completed', 1)\n      note(q, 'completed', parent)\n      if join"
_MOVED = "    redis.call('HINCRBY', q.stats, 'completed', 1)\n    note(q, 'completed', id)\n    return "
_GONE_ON = "    redis.call('HINCRBY', q.stats, 'completed', 1)\n    note(q, 'completed', id)\n    if score"
_FANNED = "  local which, list, pending = "

COUNTED: Sequence[Edit] = [
    (
        "complete",
        "if won > 0 then\n",
        f"""for i = 1, n do
  local name = with_ids and ARGV[at + i - 1] or ''
  {_NAMED % ("jobs", "(name ~= '' and name or entries[i])")}
  if reply[i] == 1 then {_COUNT % ("won", "named")} end
end
if won > 0 then
""",
    ),
    *(
        (script, "if gone == 1 then ", f"if gone == 1 then {_NAMED % ('q.jobs', 'id')} {_COUNT % ('gone', 'named')}")
        for script in ("cancel", "flow_advance")
    ),
    ("flow_advance", _JOINED, _COUNT % ("won", "stage .. '|' .. parent") + _JOINED),
    ("flow_advance", _MOVED, _COUNT % ("won", "stage .. '|' .. id") + _MOVED),
    ("flow_advance", _GONE_ON, _COUNT % ("won", "stage .. '|' .. id") + _GONE_ON),
    ("flow_advance", _FANNED, _COUNT % ("won", "'fan|' .. id") + _FANNED),
]


@frozen
class Mutant:
    """A bug, and the complaint that must be heard of it."""

    edits: Sequence[Edit]
    complaint: str
    cast: Sequence[str] = PLAIN


LOOPS = ["producer", "producer with ids", *["loop"] * 5]  # it is loops that tell what they asked for as holders
LATE = [*["producer with ids"] * 3, "loop"]  # and producers that cancel and reschedule
WORKERS = ["producer", "producer with ids", "threads", "threads", "tasks", "batches"]  # and workers that are found dead


def unfenced(script: str) -> Mutant:
    """One that asks no owner."""
    return Mutant([(script, " = own(jobs, worker, entries, counts)", " = entries")], "fence", LOOPS)


MUTANTS = {
    "renewal asks no owner": unfenced("renew"),
    "release asks no owner": unfenced("release"),
    "retry asks no owner": unfenced("retry"),
    "consumer deleted before its jobs are moved": Mutant(
        [
            (
                "reclaim",
                "local held = redis.call('XPENDING'",
                "redis.call('XGROUP', 'DELCONSUMER', jobs, 'workers', name) local held = redis.call('XPENDING'",
            )
        ],
        "stranded",
        WORKERS,
    ),
    "no record of calls": Mutant([("*", "return last and last[1] == call and last[2]", "return nil")], "twice"),
    "what rang is not adopted": Mutant(
        [("lease", "limit - #taken, 'bell'), 'bell')", "1, 'nobody'), 'bell')")], "unheard"
    ),
    "the acknowledgement wins": Mutant(
        # Cancelling removes the entry alone, and completing asks whether it was pending still.
        [
            ("cancel", "redis.pcall('XACK', q.jobs, 'workers', entry)", "0"),
            ("complete", "if not mine then acked = redis.call('XACK', jobs, 'workers', unpack(entries)) end", ""),
            (
                "complete",
                """      reply[i] = redis.call('XDEL', jobs, entries[i])
      redis.call('XACK', jobs, 'workers', entries[i])
""",
                """      redis.call('XDEL', jobs, entries[i])
      reply[i] = redis.call('XACK', jobs, 'workers', entries[i])
""",
            ),
        ],
        "double",
    ),
    "everybody completes": Mutant(
        [
            (
                "complete",
                "reply[i] = redis.call('XDEL', jobs, entries[i])",
                "redis.call('XDEL', jobs, entries[i]) reply[i] = 1",
            )
        ],
        "double",
    ),
    "group created at $": Mutant(
        [("*", "jobs, 'workers', '0', 'MKSTREAM'", "jobs, 'workers', '$', 'MKSTREAM'")], "stranded"
    ),
    "cancelling leaves what is delayed": Mutant(
        [("cancel", "gone = redis.call('ZREM', q.delayed, id)", "gone = 1")], "law", LATE
    ),
    "a turn that comes forgets the id": Mutant(
        [("*", "if not registered or registered == name then", "if not own.id then")], "index", WORKERS
    ),
    "promotion forgets releases": Mutant(
        [("*", "local releases = redis.call('HGET', q.released, id)", "local releases = nil")], "index", WORKERS
    ),
    "rescheduling does not ask whether it is delayed": Mutant(
        [("reschedule", "if redis.call('ZREM', delayed, id) == 0 then return answer(0) end", "")],
        "law",
        LATE,
    ),
    "every completion counts the child": Mutant(
        [
            (
                "flow_advance",
                "if gone == 0 then return 0 end",
                "if gone == 0 then if waiting(run, id) then ended(run, id, 'done') end return 0 end",
            )
        ],
        "astray",
        ["runs", "hand", "hand"],
    ),
    "the join comes a child early": Mutant(
        [("flow_advance", "'pending:' .. parent, -1) > 0 then", "'pending:' .. parent, -1) > 1 then")], "join", FLOW
    ),
    "nobody hears of a death": Mutant(
        [("*", "redis.call('ZADD', flows, 'XX', 2,", "redis.call('ZADD', flows, 'XX', 0,")], "astray", FLOW
    ),
    "a run is cancelled without its children": Mutant(
        [("flow_advance", "if how == 'blocked' then mark(run, id) end", "")], "orphan", FLOW
    ),
}


def install(mutant: str | None) -> None:
    """Change the scripts of this process, once and for all."""
    edits = [*COUNTED, *(MUTANTS[mutant].edits if mutant else ())]
    plain: Callable[[str], _op.Script] = _op.script
    for script, old, _ in edits:
        names = _ops._KEYS if script == "*" else [script]
        assert any(old in plain(name).source for name in names), f"{script}.lua has changed: {old!r} is not in it"

    @cache
    def changed(name: str) -> _op.Script:
        source = plain(name).source
        for script, old, new in edits:
            if script in (name, "*"):
                source = source.replace(old, new)
        return _op.Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())

    _ops.script = _flow_ops.script = changed  # type: ignore[attr-defined]
