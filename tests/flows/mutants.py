"""Bugs planted in the scripts of flows. The machine must find each."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.planted import Edit

MUTANTS: dict[str, Sequence[Edit]] = {
    "a child that goes on is not taken over by the next fan-out": [
        ("flow_advance", "      known.of = of\n", "")
    ],
    "the join comes a child early": [
        ("flow_advance", "if tonumber(get(run, 'pending', parent)) > 0 then return end", ""),
        (
            "flow_advance",
            "'pending:' .. parent, -1) > 0 then",
            "'pending:' .. parent, -1) > 1 then",
        ),
    ],
    "the join comes a child late": [
        (
            "flow_advance",
            "'pending:' .. parent, -1) > 0 then",
            "'pending:' .. parent, -1) > -1 then",
        )
    ],
    "a run is forgotten while a job of it goes on": [
        ("flow_advance", "redis.call('PERSIST', run)", "local _ = run")
    ],
    "a run is kept for ever": [
        ("flow_advance", "if live == 0 then redis", "if live == -1 then redis")
    ],
    "nobody hears of a death": [
        (
            "*",
            "set_mark(flows, id, what, nonce)\nend",
            "set_mark(flows, id, what == 2 and 0 or what, nonce)\nend",
        )
    ],
    "a death is counted again": [
        (
            "flow_advance",
            "if how ~= 'dead' then end_job(run, id, job) end -- otherwise it was",
            "end_job(run, id, job) -- it was",
        )
    ],
    "a job is dead without a reason": [
        (
            "flow_advance",
            "causes.keep(run, id, why)\n      set_place(run, id, job, 'dead')",
            "set_place(run, id, job, 'dead')",
        )
    ],
    "a new job of a cancelled id is taken for cancelled": [
        ("flow_advance", "redis.call('ZREM', q.cancels, unpack(ids))\n", ""),
        ("flow_start", "redis.call('ZREM', q.cancels, id)\n", ""),
    ],
    "nobody hears that a job was cancelled": [
        ("flow_advance", "    cancellations.note(q.cancels, {id}, result_ttl)\n  end", "  end")
    ],
    "nobody hears of a purge": [("purge", "{ids = {own.id}, what = REMOVED}", "{ids = {own.id}}")],
    "what is redriven has failed all the same": [
        ("flow_advance", "redis.call('HINCRBY', run, 'failed:' .. parent, -1)\n", "")
    ],
}
