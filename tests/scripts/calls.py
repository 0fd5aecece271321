"""Calls of each script, for the tests that try all scripts. A new script needs a row here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import frozen

from headrace import NewJob
from headrace._api.flow import Stages
from headrace._model.job import Claim, Job
from headrace._model.policy import Rate
from headrace._model.settings import QueueSettings
from headrace._model.shards import Table
from headrace._model.state import JobState
from headrace._model.steps import Record
from headrace._model.timing import Declared, Recurring, Timing
from headrace._model.views.outbox import OutboxView
from headrace._protocol import admin_ops, transfer_ops, view_ops
from headrace._protocol.features import (
    events as event_ops,
    fair as fair_ops,
    outbox as outbox_ops,
    presence as presence_ops,
    results as result_ops,
    schedules as schedule_ops,
    trends as trend_ops,
)
from headrace._protocol.features.conditions import Admission
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.features.schedules import DueSchedules
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops, enqueue_one
from headrace._protocol.script import script
from headrace._protocol.shards import ShardOps, table
from tests.scripts.conftest import TERM, Lua

ANY = object()  # a reply, or a part of it, that differs from call to call
ENTRY = object()  # an argument: the entry of the job `i`
Call = tuple[list[Any], Any]


@frozen
class Calls:
    """A script with an operation that sends it, and calls with their replies, as `(arguments,
    reply)`."""

    sample: Op[object]
    """An operation on the queue `shop/orders`: its arguments are compared with the header, and set
    to extremes."""
    nothing: Sequence[Call] = ()
    """Replies where the queue has nothing. Scripts of flows have theirs in `test_flows`."""
    filled: Sequence[Call] = ()
    """Calls on a queue that `fill` has filled, and the reply when the same call is made once
    more."""
    payloads: str = ""
    """Why it touches no payload, or nothing that grows with the queue. Other scripts have a
    function in `stands`."""


def fill(lua: Lua) -> str:
    """Add jobs in every state. Worker `w` has leased `i` with its own duration. Return the entry of
    `i`."""
    lua(
        "enqueue",
        "full",
        "i",
        "",
        4,
        "data",
        "a",
        "id",
        "i",
        "late",
        "+60000",
        4,
        "data",
        "z",
        "id",
        "late",
    )
    lua.lease(limit=1, duration=TERM)
    (entry,) = lua.holders()
    parked, dead, _ = lua.add("p", "d", "n")
    lua.lease(limit=2)
    lua("release", "w", 0, parked, 1)
    lua("dead_letter", "w", 1000, dead, 1, "why")
    lua("schedule", "s", "every 1000", "once", 5, 10, "data", "x")
    return entry


def cases(*, recorded: bool) -> list[Any]:
    """List the calls on a filled queue, of scripts that record their calls or of the others, as
    `(name, call)`."""
    return [
        pytest.param(name, call, id=f"{name}-{number}")
        for name, calls in CALLS.items()
        for number, call in enumerate(calls.filled, 1)
        if script(name).recorded == recorded
    ]


def arguments(call: Call, entry: str) -> list[Any]:
    """Return the arguments of a call on a filled queue."""
    return [entry if argument is ENTRY else argument for argument in call[0]]


def agrees(reply: Any, expected: Any) -> bool:
    """Tell whether a reply is as expected, where `ANY` is anything."""
    if isinstance(expected, list) and isinstance(reply, list):
        return len(reply) == len(expected) and all(map(agrees, reply, expected))
    return expected is ANY or bool(reply == expected)


OPS = Ops(Keys.of("shop/orders"))
SHARD = ShardOps(OPS.keys)
FAIR = Ops(OPS.keys, QueueSettings(fair="tenant", weights={"a": 2.0}, ordered=True))
TERMS = (
    "fair=tenant limits= rates=",
    '{"path":["tenant"],"keys":[],"limits":[],"rates":[],"words":{"fair":"tenant"}}',
)
FLOW = Stages("shop", "headrace", None, ["a"], 1000, 60.0, False)
FLOW.stage("orders", next="bills")
FLOW.stage("bills")
CLAIMS = [Claim(Job(f"{i}-0", b"x", "shop/orders"), "w", f"{i}-0", 1, 1) for i in (1, 2)]
INTENT = transfer_ops.Intent("00c0ffee shop/orders n1", ["i", "", 4, "data", b"x", "id", "i"])
CHILD = ["data", "x", "id", "i/pack"]
AFAR = Ops(Keys.of("bills"))
HOME = AFAR.keys.prefix
RECORD = Record(1, "pack", "child", 1, 0, 0, None, 0, home=OPS.keys.prefix, child="i/p", depth=1)
CALLS: dict[str, Calls] = {
    "about": Calls(
        sample=view_ops.about(OPS),
        nothing=[([], [ANY, 0, 0, 0])],
        payloads="three fields, one of at most 16 options",
    ),
    "accept": Calls(
        sample=transfer_ops.accept(OPS, 5, [INTENT]),
        nothing=[
            ([0], [0, ANY, 0, []]),
            ([0, "n", "i", "", 4, "data", "a", "id", "i"], [0, ANY, 0, []]),
        ],
        filled=[
            (
                [
                    4e12,
                    "n",
                    "new",
                    "+60000",
                    4,
                    "data",
                    "b",
                    "id",
                    "new",
                    "m",
                    "",
                    "",
                    2,
                    "data",
                    "c",
                ],
                [1, ANY, 0, []],
            )
        ],
    ),
    "adopt": Calls(
        sample=step_ops.adopt(AFAR, CLAIMS[0], RECORD, NewJob(b"x", queue="shop/orders")),
        nothing=[([HOME, "i", "5", 1, 1, "i/pack", "", *CHILD], 1)],
        filled=[([HOME, "i", "5", 1, 1, "i/pack", "", *CHILD], 0)],
        payloads="its own arguments: one job",
    ),
    "ask_worker": Calls(
        sample=presence_ops.ask(OPS, "w", "quiet"),
        nothing=[(["w", "quiet"], [0, 0])],
        filled=[(["w", "quiet"], [0, 0]), (["w", ""], [0, 0])],
        payloads="names of workers",
    ),
    "beat": Calls(
        sample=OPS.beat("w", 10.0, register=True, kinds=["a", "b"]),
        nothing=[(["w", 10_000, TERM, 0], 0), (["w", 10_000, TERM, 1], 1)],
        payloads="two keys of one worker",
    ),
    "build": Calls(
        sample=step_ops.build(OPS, CLAIMS[0], "b1"),
        nothing=[(["w", "5-0", 1, "i", "5", "b1"], 0)],
        filled=[(["w", ENTRY, 1, "i", "5", "b1"], 0)],
        payloads="the head of one run",
    ),
    "cancel": Calls(
        sample=admin_ops.cancel(OPS, "i"),
        nothing=[(["i", TERM], 0), (["5-0", TERM], 0), (["99999999999999999999-0", TERM], 0)],
        filled=[(["i", TERM], 0), (["late", TERM], 0)],
    ),
    "cancel_payload": Calls(
        sample=admin_ops.cancel_payload(OPS, b"x", "jobs", "-"),
        nothing=[
            (["a", "jobs", "-", 500, TERM], [0, "delayed", "0"]),
            (["a", "delayed", "0", 500, TERM], [0, "", "0"]),
        ],
        filled=[
            (["a", "jobs", "-", 500, TERM], [0, "delayed", "0"]),
            (["z", "delayed", "0", 500, TERM], [0, "", "0"]),
        ],
    ),
    "child": Calls(
        sample=step_ops.child(
            OPS, CLAIMS[0], "pack", NewJob(b"x", id="i/pack", queue="shop/bills")
        ),
        nothing=[(["w", "5-0", 1, "i", "5", "pack", 1, "", 0, *CHILD], [0])],
        filled=[(["w", ENTRY, 1, "i", "5", "pack", 1, "", 0, *CHILD], [1, 2, "i/pack~5"])],
        payloads="one job, and one row of a run",
    ),
    "child_away": Calls(
        sample=step_ops.child_away(OPS, CLAIMS[0], "pack", AFAR.keys, "i/pack~1"),
        nothing=[(["w", "5-0", 1, "i", "5", "pack", 1, 0, HOME, "i/pack"], [0])],
        filled=[(["w", ENTRY, 1, "i", "5", "pack", 1, 0, HOME, "i/pack"], [1, 2, 1])],
        payloads="one row of a run",
    ),
    "close": Calls(
        sample=transfer_ops.close(OPS, [INTENT.nonce]),
        nothing=[([], 0), (["n"], 1)],
        filled=[(["m"], 1)],
        payloads="nonces, at most 1,000",
    ),
    "complete": Calls(
        sample=OPS.complete(CLAIMS),
        nothing=[(["", 1, 0, 0, 0, "5-0"], [0]), (["w", 2, 0, 0, 0, "5-0", "6-0", 1, 1], [0, 0])],
        filled=[(["", 1, 1, 0, 0, ENTRY, "i"], [0]), (["w", 1, 1, 0, 0, ENTRY, 1, "i"], [0])],
    ),
    "counts": Calls(sample=view_ops.counts(OPS), nothing=[([], [0] * 12)]),
    "dead_letter": Calls(
        sample=OPS.dead_letter([(claim, "why") for claim in CLAIMS]),
        nothing=[(["w", 1000, "5-0", 1, "why"], [0])],
        filled=[(["w", 1000, ENTRY, 1, "why"], [0])],
    ),
    "declare": Calls(
        sample=Ops(OPS.keys, QueueSettings(max_attempts=3)).declare(serving=True),
        nothing=[
            ([0, "codec", "JSONCodec"], [1]),
            ([0, "codec", "BytesCodec"], [1, "codec", "JSONCodec"]),
        ],
        payloads="one field, of at most 16 options",
    ),
    "declare_terms": Calls(
        sample=fair_ops.declare(FAIR, "w"),
        nothing=[
            (["serve", "w", *TERMS], [1, TERMS[0], 1]),
            (["again", "w", "", fair_ops.NONE], [0, TERMS[0], 1]),
            (["force", "w", "", fair_ops.NONE], [1, "", 2]),
        ],
        payloads="at most 10,000 weights, and the names of live workers; jobs are moved unread",
    ),
    "delete": Calls(sample=admin_ops.delete(OPS), nothing=[([], [0, 0])], filled=[([], [0, 0])]),
    "drained": Calls(sample=SHARD.drained(), nothing=[([], [-1, *[0] * 6])], payloads="numbers"),
    "ended": Calls(sample=result_ops.ended(OPS, ["i"]), nothing=[(["i", "5-0"], [1, 1])]),
    "enqueue": Calls(
        sample=OPS.enqueue([b"x", b"y"]),
        nothing=[(["full", "i", "+60000", 2, "data", "a"], ["i", 1])],
        filled=[
            (["plain", "a"], ANY),
            (
                [
                    "full",
                    "",
                    "",
                    2,
                    "data",
                    "a",
                    "j",
                    "",
                    4,
                    "data",
                    "b",
                    "id",
                    "j",
                    "k",
                    "+6",
                    2,
                    "data",
                    "c",
                ],
                [ANY, 1, "j", 0, "k", 0],
            ),
        ],
    ),
    "enqueue_if": Calls(
        sample=Admission(OPS).single([("i", "", "unique=1", ["data", b"x"])]),
        nothing=[([1, 5000, 1, "i", "+60000", "throttle=60000", 2, "data", "a"], [-1, "", "i", 1])],
        filled=[
            (
                [
                    9,
                    5000,
                    1,
                    "new",
                    "+60000",
                    "throttle=60000",
                    2,
                    "data",
                    "b",
                    "i",
                    "",
                    "replace=1",
                    2,
                    "data",
                    "b",
                ],
                [-1, "", "new", 4, "i", 0],
            )
        ],
    ),
    "enqueue_one": Calls(
        sample=enqueue_one(OPS).of(b"x"), nothing=[(["a"], ANY)], filled=[(["a"], ANY)]
    ),
    "expire": Calls(
        sample=admin_ops.expire(OPS, "-", ["i"]),
        nothing=[(["-", 500], [0, ""]), (["-", 500, "i", "5-0"], [0, ""])],
        filled=[(["-", 500, "i"], [0, ""]), (["-", 500], [0, ""])],
    ),
    "fail_worker": Calls(
        sample=admin_ops.fail_worker(OPS, "w"),
        nothing=[(["w", 500], [0, 0])],
        filled=[(["w", 500], [0, 0])],
    ),
    "find": Calls(
        sample=view_ops.find(OPS, "i"),
        nothing=[(["i", ""], [ANY, [], ""]), (["5-0", ""], [ANY, [], ""])],
    ),
    "flow_advance": Calls(sample=FLOW.ops.advance([FLOW.ops.cancelling("i")])),
    "flow_events": Calls(
        sample=FLOW.ops.events(), payloads="names of jobs, at most 200 of a stage"
    ),
    "flow_find": Calls(
        sample=FLOW.ops.found("a", "b", ""), payloads="names of runs, at most 1,000"
    ),
    "flow_read": Calls(sample=FLOW.ops.read(["i", "j"])),
    "flow_start": Calls(sample=FLOW.ops.start(NewJob(b"x", "i"))),
    "hand": Calls(
        sample=transfer_ops.hand(OPS, 0, [(INTENT.name, "1 shop/orders n1")], ["1 shop/orders n0"]),
        nothing=[([0, 10, 0, 0], [0, [], []])],
        filled=[([0, 10, 1, 1, "00c0ffee q/b m", "4 q/b m", "4 q/b l"], [0, [], ["4 q/b m"]])],
    ),
    "hand_schedule": Calls(
        sample=SHARD.hand_schedule("s"), nothing=[(["s"], [])], payloads="one schedule"
    ),
    "handing": Calls(
        sample=transfer_ops.jobs_in_outbox(OPS), nothing=[([], 0)], payloads="one number"
    ),
    "inherit": Calls(
        sample=SHARD.inherit(["history", "5 1000"]),
        nothing=[([], 1), (["history", "5 1000"], 0)],
        payloads="six fields, one of at most 16 options",
    ),
    "lease": Calls(
        sample=Ops(Keys.of("shop/orders"), QueueSettings(rate=Rate(1))).lease("w", 10),
        nothing=[
            (["w", 10, "", TERM, TERM, 0, 1000, 0], [1, -1, [], [], 1, ANY]),
            (["w", 10, "", TERM, TERM, 0, 1000, 1], [1, -1, [], [], ANY, ANY]),
            (["v", 10, "", TERM, 0, 0, 1000, 0], [0, -1, [], [], ANY, ANY]),
        ],
    ),
    "lease_fair": Calls(
        sample=Ops(Keys.of("shop/orders"), QueueSettings(fair="tenant", ordered=True)).lease(
            "w", 10, fair=True
        ),
        nothing=[
            (
                ["w", 10, "", TERM, TERM, 0, 1000, 0, "", 1, 1, 0],
                [5, -1, [], [], 0, ANY, 0, [], 0, ""],
            )
        ],
    ),
    "lease_of": Calls(
        sample=view_ops.lease_of(OPS, "1-0"),
        nothing=[(["5-0"], [])],
        payloads="one row of a pending list",
    ),
    "leave": Calls(
        sample=OPS.leave("w"), nothing=[(["w", 500], [0, 0])], filled=[(["w", 500], [0, 0])]
    ),
    "levels": Calls(sample=view_ops.levels(OPS), nothing=[([], 0)], payloads="one field"),
    "list": Calls(
        sample=view_ops.listing(OPS, "waiting", "", wanted=["tenant", "=a"]),
        nothing=[
            ([state, "", 100], ["", ANY, []])
            for state in ("running", "delayed", "blocked", "dead", "ended")
        ],
    ),
    "line_up": Calls(sample=fair_ops.line_up(FAIR, "w"), nothing=[([500], 0)], filled=[([500], 0)]),
    "learn": Calls(
        sample=step_ops.learn(OPS, HOME, step_ops.Reports(True, [b"i/pack", b"x"])),
        nothing=[([HOME, 0], 0), ([HOME, 1, "i/pack", "x"], 0)],
        payloads="its own arguments, and the rows of their runs, once where children have moved",
    ),
    "listen": Calls(
        sample=event_ops.listen(OPS), nothing=[([], 1)], filled=[([], 1)], payloads="one field"
    ),
    "measure": Calls(sample=view_ops.measure(OPS), nothing=[([], [*[0] * 14, [ANY, 0, 0, 0]])]),
    "move": Calls(
        sample=admin_ops.move(OPS, "shop/bills", "-", ["i"]),
        nothing=[
            (["-", 200], [0, "suspects:0 - 0-0"]),
            (["suspects:0 -", 200], [0, "idle:0 - 0-0"]),
            (["idle:0 -", 200], [0, "behind:0 - 0-0"]),
            (["behind:0 -", 200], [0, "new:0 - 0-0"]),
            (["new:0 -", 200], [0, "delayed 0"]),
            (["delayed 0", 200], [0, ""]),
            (["-", 200, "i", "5-0"], [0, ""]),
        ],
        filled=[
            (["-", 200, "late"], [0, ""]),
            (["-", 200], [0, ANY]),
            (["new:0 -", 200], [0, "delayed 0"]),
            (["delayed 0", 200], [0, ""]),
        ],
    ),
    "pause": Calls(
        sample=admin_ops.pause(OPS, True),
        nothing=[([1], 1), ([0], 1)],
        filled=[([1], 0)],
        payloads="one field",
    ),
    "paused": Calls(sample=admin_ops.paused(OPS), nothing=[([], 0)], payloads="one field"),
    "position": Calls(
        sample=view_ops.position(OPS, "i"),
        nothing=[([name, 10, ""], [-1, ""]) for name in ("i", "5-0", "99999999999999999999-0")],
    ),
    "present": Calls(
        sample=SHARD.present(["i", "j"]),
        nothing=[(["a", "b"], [0, 0])],
        payloads="names of jobs, at most 1,000",
    ),
    "progress": Calls(
        sample=step_ops.progress(OPS, CLAIMS[0], 0.5, "half"),
        nothing=[(["w", "5-0", 1, "5-0", "5", "0.5", "half"], 0)],
        payloads="one short text of one job",
    ),
    "pause_value": Calls(
        sample=fair_ops.pause(FAIR, ["tenant", "=a"], True),
        nothing=[([1, "tenant", "=a"], 1), ([0, "tenant", "-"], 0), ([0, "tenant", "=a"], 1)],
        filled=[([1, "tenant", "=a"], 0)],
        payloads="1,000 values of at most 500 bytes",
    ),
    "pause_schedule": Calls(
        sample=schedule_ops.pause_schedule(OPS, "s", True),
        nothing=[(["s", 1], 0), (["s", 0], 0)],
        filled=[(["s", 1], 0)],
        payloads="one name",
    ),
    "purge": Calls(
        sample=admin_ops.purge(OPS, "-", ["tenant", "=a"]),
        nothing=[(["-", 500], [0, ""]), (["-", 500, "tenant", "=a"], [0, ""])],
        filled=[(["-", 500], [0, ""])],
    ),
    "purge_dead": Calls(
        sample=admin_ops.purge_dead(OPS, "-", ["i"]),
        nothing=[(["-", 500], [0, ""]), (["-", 500, "a"], [0, ""])],
        filled=[(["-", 500], [0, ""])],
    ),
    "reclaim": Calls(
        sample=OPS.reclaim("w", 10.0),
        nothing=[(["w", 10_000, TERM, 500, 0], [0, -1, 0, 0, 0, -1, -1])],
    ),
    "recur": Calls(
        sample=schedule_ops.declare_schedules(
            OPS, Declared([Recurring("tasks/a", Timing(every=1000), "once", NewJob(b"{}"))]), "w"
        ),
        nothing=[
            (["w", ""], [0]),
            (["w", "v1", "tasks/a"], [1]),
            (["w", "v1", "tasks/a"], [0]),
            (["v", "v2"], [1]),
        ],
        filled=[(["w", "v1", "tasks/a"], [0])],
        payloads="names of schedules, at most 1,000 of each version of the code that runs",
    ),
    "redrive": Calls(
        sample=admin_ops.redrive(OPS, "-", ["i"]),
        nothing=[(["-", 500, "", ""], [0, ""]), (["-", 500, "", "=b", "a"], [0, ""])],
        filled=[(["-", 500, "", ""], [0, ""])],
    ),
    "register": Calls(
        sample=OPS.register("w.1", "w", 10.0, kinds=["a", "b"]),
        nothing=[(["w.1", "w", 10_000, TERM, "", 0], [1, ""])],
        payloads="two keys of one worker",
    ),
    "release": Calls(
        sample=OPS.release(CLAIMS),
        nothing=[(["w", 0, "5-0", 1], [0]), (["w", 1000, "5-0", 1, "6-0", 1], [0, 0])],
        filled=[(["w", 0, ENTRY, 1], [0]), (["w", 60_000, ENTRY, 1], [0])],
    ),
    "renew": Calls(
        sample=OPS.renew(CLAIMS),
        nothing=[(["w", "", 0, "5-0", 1], [0]), (["w", 5000, TERM, "5-0", 1, "6-0", 1], [0, 0])],
        filled=[(["w", "", 0, ENTRY, 1], [1])],
        payloads="names of entries",
    ),
    "relayed": Calls(
        sample=outbox_ops.relayed(OPS, OutboxView("host:1", 2, 3.0, 4, ended=False)),
        nothing=[([], [-1])],
        filled=[
            (["relay", "host:1", "rows", "2"], [ANY, "at", ANY, "relay", "host:1", "rows", "2"])
        ],
        payloads="a report of 6 short fields",
    ),
    "report": Calls(
        sample=presence_ops.report(OPS, "w", {"host": "h"}),
        nothing=[(["w", 0, "{}"], ["", 0])],
        filled=[(["w", 0, "{}"], ["", 0]), (["w", 1, "{}"], ["quiet", 0])],
        payloads="names of workers",
    ),
    "repair": Calls(
        sample=admin_ops.repair(OPS),
        nothing=[(["jobs", "-", 500, TERM, 0], ["", "0", *[0] * 12])],
        filled=[(["jobs", "-", 500, TERM, 0], ["", "0", *[0] * 12])],
    ),
    "reports": Calls(
        sample=step_ops.reports(AFAR, OPS.keys.prefix, [b"i/p"]),
        nothing=[([100], [0])],
        filled=[([100, "i/pack"], [0])],
        payloads="reports of at most 64 KiB, 1 MiB in all",
    ),
    "reschedule": Calls(
        sample=admin_ops.reschedule(OPS, "i", 1.0),
        nothing=[(["i", "+5"], 0), (["i", ""], 0)],
        filled=[(["late", "+5000"], 1), (["late", ""], 0)],
    ),
    "rest": Calls(
        sample=presence_ops.rest(OPS, "w", 10.0),
        nothing=[(["w", 60_000], -1)],
        payloads="one row a worker, at most 101, and one of a pending list",
    ),
    "result": Calls(sample=result_ops.result(OPS, "i"), nothing=[(["i"], [None])]),
    "retry": Calls(
        sample=OPS.retry([(claim, None, True, "why") for claim in CLAIMS]),
        nothing=[(["w", 0, 1000, "5-0", 1, "", 1, "why"], [0])],
        filled=[
            (["w", 0, 1000, ENTRY, 1, "", 1, "why"], [0]),
            (["w", 0, 1000, ENTRY, 1, "+60000", 1, "why"], [0]),
            (["w", 1, 1000, ENTRY, 1, "", 1, "why"], [0]),
        ],
    ),
    "run_schedule": Calls(
        sample=schedule_ops.run_schedule(OPS, "s"), nothing=[(["s"], "")], filled=[(["s"], ANY)]
    ),
    "schedule": Calls(
        sample=schedule_ops.schedule(OPS, "s", Timing(every=1000), "once", NewJob(b"x"))(5),
        nothing=[(["s", "every 1000", "once", 5, 10, "data", "x"], 1)],
        filled=[(["s", "every 2000", "once", 5, 10, "data", "x"], 0)],
    ),
    "schedules": Calls(
        sample=schedule_ops.schedules(OPS),
        nothing=[([which, ""], [ANY, -1, [], ""]) for which in ("all", "due", "one", "none")],
    ),
    "seal": Calls(
        sample=SHARD.seal(2),
        nothing=[([0], [0]), ([1], [0])],
        payloads="five fields, one of at most 16 options",
    ),
    "set_concurrency": Calls(
        sample=presence_ops.set_concurrency(OPS, 4),
        nothing=[([4], 1), ([0], 1)],
        filled=[([4], 1)],
        payloads="one field",
    ),
    "shards": Calls(
        sample=table(OPS.keys, Table.of("shop", 2).rows()),
        nothing=[
            (["q", "", ""], []),
            (["", "", "", "version", "1"], ["version", "1"]),
            (["", "", "", "version", "2"], ["version", "1"]),
            (["", "1", "1", "version", "2"], ["version", "1"]),
            (["", "1", "0", "version", "2"], ["version", "2"]),
        ],
        payloads="two words for each of 1,024 shards, and 1,000 queues",
    ),
    "shares": Calls(
        sample=fair_ops.shares(FAIR),
        nothing=[([10, "-"], ["", "0", [], "", []])],
        payloads="20 values of at most 500 bytes",
    ),
    "slots": Calls(
        sample=fair_ops.slots(FAIR),
        nothing=[([10], [])],
        payloads="200 values of at most 500 bytes",
    ),
    "signs": Calls(
        sample=view_ops.signs(OPS, 3600, 100),
        nothing=[([3600, 100], [0, 0, 0, 0, [0, 0, 0, 0]])],
        filled=[([3600, 100], [1, 0, 0, 0, [0, 0, 0, 0]])],
    ),
    "signal": Calls(
        sample=step_ops.signal(OPS, "i", "approved", "ada", b"x"),
        nothing=[(["i", "approved", "ada", "x"], 0), (["5-0", "approved", "ada"], 0)],
        filled=[(["i", "approved", "ada", "x"], 1), (["late", "approved", "ada"], 1)],
        payloads="one job, for the time of its enqueue, and its records",
    ),
    "step": Calls(
        sample=step_ops.record(OPS, CLAIMS[0], 0, "pay", b"x", ended=True, took=0.1, ttl=0.0),
        nothing=[(["w", "5-0", 1, 1, "", 0, "i", "5", 0, "pay", "step", 1, 1, 5, "x"], 0)],
        filled=[(["w", ENTRY, 1, 1, "", 0, "i", "5", 0, "pay", "step", 1, 1, 5, "x"], 2)],
        payloads="one value of at most 64 KiB, and the run's row",
    ),
    "hold": Calls(
        sample=step_ops.hold(OPS, CLAIMS[0], "b1"),
        nothing=[(["w", "5-0", 1, 1, "i", "5", "+5", "b1"], [0])],
        filled=[(["w", ENTRY, 1, 1, "i", "5", "+5", "b1"], [0])],
        payloads="the head of one run",
    ),
    "runs": Calls(
        sample=step_ops.heads(OPS, [JobState(CLAIMS[0].job, "leased")]),
        nothing=[(["i", "5"], [[]])],
        payloads="heads of runs, and two records of each",
    ),
    "steps": Calls(
        sample=step_ops.read(OPS, CLAIMS[0]),
        nothing=[(["i", "5"], [])],
        payloads="the records of one run, at most 1,000 and 1 MiB",
    ),
    "suspend": Calls(
        sample=step_ops.suspend(OPS, CLAIMS[0], [1]),
        nothing=[(["w", "5-0", 1, 1, "i", "5", 0, 0, "+5", 1], [0])],
        filled=[(["w", ENTRY, 1, 1, "i", "5", 0, 0, "+5", 1], [0])],
        payloads="rows of a run",
    ),
    "take_schedule": Calls(
        sample=SHARD.take_schedule("s", 5, b"x", [b"set"]),
        nothing=[(["s", 5, "x"], 1), (["s", 5, "x"], 0)],
        payloads="one schedule",
    ),
    "tallies": Calls(
        sample=trend_ops.tallies(OPS, "minute", 5),
        nothing=[([ring, 0], [ANY]) for ring in "mtv"],
        payloads="144 records of at most 4 kB",
    ),
    "tally": Calls(
        sample=trend_ops.tally(OPS, '{"hm":[1,0,0,5,9]}'),
        nothing=[(['{"hm":[1,0,0,5,9]}'], 1)],
        filled=[(['{"hm":[1,0,0,5,9]}'], 1)],
        payloads="three records of at most 4 kB",
    ),
    "tick": Calls(
        sample=schedule_ops.plan_ticks(
            OPS, DueSchedules(7, None, [("s", 5, "every 1000", "once")])
        ).ops[0],
        nothing=[(["s", "every 1000", 5, 10, 5], 0)],
        filled=[(["s", "every 1000", 5, 1005, 5], 0)],
    ),
    "trends": Calls(
        sample=trend_ops.trends(OPS, "minute", 10),
        nothing=[([0, 10], [ANY, 0, ""])],
        payloads="a part of one string, 104 kB",
    ),
    "unpin": Calls(
        sample=step_ops.unpin(OPS, 10, ["b1"]),
        nothing=[([10, "b1"], 0)],
        payloads="100 builds",
    ),
    "unschedule": Calls(
        sample=schedule_ops.unschedule(OPS, "s"),
        nothing=[(["s"], 0)],
        filled=[(["s"], 0)],
        payloads="one schedule",
    ),
    "wait": Calls(
        sample=step_ops.wait(OPS, CLAIMS[0], "night", "sleep", "+5"),
        nothing=[(["w", "5-0", 1, "i", "5", "night", "sleep", "+60000", 1, ""], [0])],
        filled=[(["w", ENTRY, 1, "i", "5", "night", "sleep", "+60000", 1, ""], [1, 2, ANY])],
        payloads="one row of a run",
    ),
    "wipe": Calls(
        sample=SHARD.wipe(), nothing=[([], 0)], payloads="names of keys, and of fields of the stats"
    ),
    "workers": Calls(
        sample=view_ops.workers(OPS), nothing=[([], [ANY])], payloads="one row a worker"
    ),
}
