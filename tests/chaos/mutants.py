"""Scripts changed inside the processes of the harness: what they decide counted by the server, and bugs planted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache

from attrs import frozen

from headrace import _op, _ops

Edit = tuple[str, str, str]
"""The script ('*': every one that has the text), a text of it, and what replaces it."""

CAST = ["producer", "producer with ids", "loop", "loop", "threads", "tasks", "batches"]

COUNTED: Sequence[Edit] = [
    # By id, in the scripts that decide it: killing the caller can't hide that a job was completed twice.
    (
        "complete",
        "if won > 0 then\n",
        """for i = 1, n do
  local name = with_ids and ARGV[at + i - 1] or ''
  if reply[i] == 1 then redis.call('HINCRBY', 'chaos:won', name ~= '' and name or entries[i], 1) end
end
if won > 0 then
""",
    ),
    (
        "cancel",
        "if gone == 1 then redis.call('ZADD'",
        "if gone == 1 then redis.call('HINCRBY', 'chaos:gone', id, 1) end\nif gone == 1 then redis.call('ZADD'",
    ),
]


@frozen
class Mutant:
    """A bug, and the complaint that must be heard of it."""

    edits: Sequence[Edit]
    complaint: str
    cast: Sequence[str] = CAST


LOOPS = ["producer", "producer with ids", *["loop"] * 5]  # it is loops that tell what they asked for as holders
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
            ("cancel", "redis.pcall('XACK', q.jobs, 'workers', entry)", ""),
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

    _ops.script = changed  # type: ignore[attr-defined]
