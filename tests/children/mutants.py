"""Bugs planted in the scripts of children. The machine must find each."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.planted import Edit

MUTANTS: dict[str, Sequence[Edit]] = {
    "the end of a child is not told": [
        (
            "*",
            "function runs.children_ended(q, ids, state, told)\n",
            "function runs.children_ended(q, ids, state, told)\n  if ids then return end\n",
        ),
    ],
    "a link stays behind": [("*", "      redis.call('HDEL', q.links, ids[i])\n", "")],
    "each end counts as completed": [
        ("*", "runs.CHILD_STATES[what] or q.removed_as or 'deleted'", "'completed'"),
    ],
    "a result is lost": [("*", "told and told[ids[i]])", "nil)")],
    "the result of another job is told": [
        (
            "complete",
            "told[ARGV[names + tonumber(ARGV[kept + 3 * i - 3]) - 1]] = ARGV[kept + 3 * i - 1]",
            "told[ARGV[names]] = 'another'",
        ),
    ],
    "a parent sleeps on": [
        (
            "*",
            "redis.call('ZADD', home .. 'asleep', string.format('%.0f', now), entry)",
            "local _ = now",
        ),
    ],
    "the first of every child wakes": [
        ("*", "run.more.pending <= 1 or", "run.more.pending <= 9 or"),
    ],
    "no failure wakes": [("*", " or state ~= 'completed'\n", "\n")],
    "the last of every child wakes nobody": [
        ("*", "run.more.pending <= 1 or", "run.more.pending <= 0 or"),
    ],
    "an end before the suspension is missed": [
        ("suspend", "if wakes_now or open == 0 then moment = now end\n", ""),
    ],
    "a failure before the suspension is missed": [
        (
            "suspend",
            "wakes_now = wakes_now or not every or runs.child_failed(record)",
            "wakes_now = wakes_now or not every",
        ),
    ],
    "a suspension counts all children": [
        (
            "suspend",
            "local pending = every and open > 1 and moment ~= now and open or nil",
            "local pending = every and #ARGV or nil",
        ),
    ],
    "a dead parent is not followed": [
        (
            "*",
            "    local links = runs.is_open_child(record) and record[runs.CHILD_HOME] .. 'links'\n",
            "    local links = false\n",
        ),
    ],
    "a redriven parent keeps the name of its letter": [
        (
            "*",
            "link[1], link[2], link[4] = runs.home_of(steps), id, number",
            "link[1], link[4] = runs.home_of(steps), number",
        ),
    ],
    "an ended child counts as open": [
        ("*", "run.more.children > 1 and run.more.children - 1 or nil", "run.more.children"),
    ],
    "a child is started without a link": [
        ("child", "redis.call('HSET', to_links,", "redis.call('HSET', to_links .. 'x',"),
    ],
    "a cancel names no children": [
        ("cancel", "local open = runs.open_children(steps, id)\n", "local open = {}\n"),
    ],
    "a cancel names ended children, too": [
        (
            "cancel",
            "    if runs.is_open_child(record) then\n",
            "    if record[2] == 'child' then\n",
        ),
    ],
    "an end in another slot is lost": [
        ("*", "  redis.call('HSET', reports, id, cmsgpack.pack(report))\n", ""),
    ],
    "a child in another slot starts again": [
        ("adopt", "redis.call('ZSCORE', reported, id)", "false"),
    ],
    "a child in another slot is forgotten too early": [
        ("reports", "known, runs.REPORTED_MS)", "known, 0)"),
    ],
    "an end is learned twice": [
        ("*", "if not parent or not runs.is_open_child(record) then", "if not parent then"),
    ],
    "a dead parent is not found": [
        (
            "*",
            "    redis.call('HSET', to_steps, run.more.alias, to_id,",
            "    redis.call('HSET', to_steps,",
        ),
    ],
    "a redriven parent is not found": [
        ("*", "  fields[#fields + 1] = run.more.alias\n", ""),
    ],
}
