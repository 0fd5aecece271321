"""The cases of `scripts.py`. Each is a name and a function from a `Stand` to an operation, made
anew each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve
from stands import DAY, FILL, LEVELS, WORKER, Stand, chunks, queue

from headrace import FanOut, NewJob, Rate, Replace, Throttle
from headrace._model.job import Claim
from headrace._model.settings import QueueSettings
from headrace._model.timing import Timing
from headrace._protocol import admin_ops, view_ops
from headrace._protocol.features import results as result_ops, schedules as schedule_ops
from headrace._protocol.features.conditions import Admission
from headrace._protocol.features.flows.ops import STEPS_PER_SCRIPT, FlowOps
from headrace._protocol.limits import BYTES_PER_SCRIPT, CLAIMS_PER_SCRIPT, REWRITES_PER_SCRIPT
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops

MISSED = """
local name, timing, moment = ARGV[1], ARGV[2], redis.call('TIME')[1] * 1000 - ARGV[3]
redis.call('HSET', KEYS[1], name, cmsgpack.pack({timing, 'all', {'data', ARGV[4]}}))
redis.call('ZADD', KEYS[2], moment, name)
return moment
"""


def hot(s: Stand) -> Op[Any]:
    """Return a lease call where one key has all waiting jobs, and one of them may start."""
    ops = queue("hot", rate=(Rate(1, per=3600, key="account"),))
    if not s.client.exists(ops.keys.key("jobs")):
        s.group(ops)
        number = min(100_000, s.fill.waiting)
        for at in range(0, number, s.batch):
            parts = [
                ops.keys.key(key) for key in ("jobs", "ids", "dead", "delayed", "bodies", "stats")
            ]
            upto = min(at + s.batch, number)
            s.client.eval(FILL, 6, *parts, "waiting", s.payload(), at, upto, "", "account", "hot")
    return ops.lease(WORKER, 250, ttl=DAY)


def heir(s: Stand) -> Op[Any]:
    ops = s.leased(s.fresh("heir", s.some(2000)), s.some(2000), "before.w")
    return ops.lease("after.w", 250, ttl=DAY, predecessor="before.w")


def heir_levels(s: Stand) -> Op[Any]:
    heir(s)
    s.client.hset("headrace:{bench}:bench/heir:stats", "levels", 9)
    return queue("heir", priorities=LEVELS).lease("after.w", 250, ttl=DAY, predecessor="before.w")


def due(s: Stand) -> Op[Any]:
    ops = s.fresh("due", 0)
    s.put(ops, "delayed", s.some(1000))
    delayed = ops.keys.key("delayed")
    s.client.zadd(delayed, dict.fromkeys(s.client.zrange(delayed, 0, -1), 1))
    return ops.lease(WORKER, 250, ttl=DAY)


def promote(s: Stand) -> Op[Any]:
    due(s)
    return queue("due").reclaim(WORKER, 10)


def lease_levels(s: Stand) -> Op[Any]:
    ops = queue("levels", priorities=LEVELS)
    if not s.client.exists(ops.keys.key("jobs")):
        s.group(ops)
        for level in range(1, LEVELS):
            s.put(ops, "waiting", min(10_000, 10 * s.batch), level=level)
    return ops.lease(WORKER, 250, ttl=DAY)


def expired(s: Stand, **options: Any) -> Op[Any]:
    """Return a step of the sweep after many leases have expired."""
    ops = s.fresh("sweep", s.some(2000), lease=0.002)
    s.leased(ops, s.some(2000), **options)
    s.client.hdel(ops.keys.key("stats"), "sweep")
    return ops.reclaim(WORKER, 10)


def expired_levels(s: Stand) -> Op[Any]:
    expired(s)
    s.client.hset("headrace:{bench}:bench/sweep:stats", "levels", 9)
    return queue("sweep", lease=0.002, priorities=LEVELS).reclaim(WORKER, 10)


def nothing_expired(s: Stand) -> Op[Any]:
    s.client.hdel(s.ops.keys.key("stats"), "sweep")
    return s.ops.reclaim(WORKER, 10)


def somewhere(s: Stand) -> Op[Any]:
    """Return a reclaim in the middle of a sweep over leases of different lengths."""
    first: Any = s.client.xpending_range(s.ops.keys.key("jobs"), "workers", "-", "+", 1)
    s.client.hset(s.ops.keys.key("stats"), "sweep", f"0 0 {first[0]['message_id'].decode()}")
    s.client.zadd(s.ops.keys.key("leases"), {"1-1": 2**52})
    return s.ops.reclaim(WORKER, 10)


def a_dead_worker(s: Stand) -> Op[Any]:
    ops = s.leased(s.fresh("died", s.some(2000)), s.some(2000), "dies.w")
    s.sure(ops)
    s.run(ops.beat("looks.w", DAY, register=True))
    s.client.zadd(ops.keys.key("workers"), {"dies.w": 1})
    return ops.reclaim("looks.w", 10)


def ageing(s: Stand) -> Op[Any]:
    ops = queue("old", priorities=LEVELS, ageing=0.001)
    if not s.client.exists(ops.keys.key("jobs")):
        s.group(ops)
        for level in range(1, LEVELS):
            s.put(ops, "waiting", min(2_000, 4 * s.batch), level=level)
            s.put(ops, "parked", min(2_000, 4 * s.batch), f"parked:{level}")
    return ops.reclaim(WORKER, 10)


def held_by(s: Stand, worker: str) -> Ops:
    return s.leased(s.ops, s.some(1000), worker)


def deleted(s: Stand) -> Op[Any]:
    ops = s.fresh("gone", s.some(20_000))
    s.put(ops, "delayed", s.some(10_000))
    s.put(ops, "dead", s.some(10_000))
    return admin_ops.delete(ops)


def deleted_flows(s: Stand) -> Op[Any]:
    ops = s.fresh("gone", s.some(20_000))
    s.put(ops, "delayed", s.some(20_000))
    flows = {f"delayed-{n}": 77 + n for n in range(s.numbers["bench/gonedelayed"])}
    for some in chunks([*flows], 10_000):
        s.client.zadd(ops.keys.key("flows"), {name: flows[name] for name in some})
    return admin_ops.delete(ops)


def followed(s: Stand, number: int) -> Op[Any]:
    size = s.batch if s.fill.size > 1000 else number
    payload = s.payload()[: (BYTES_PER_SCRIPT - 100_000) // min(number, size)]
    return s.ops.complete(
        s.claims(1), then=[NewJob(payload, queue="bench/next") for _ in range(min(number, size))]
    )


def with_results(s: Stand) -> Op[Any]:
    claims = s.claims(250)
    return s.ops.complete(claims, results={claim.entry: claim.job.payload for claim in claims})


def enqueued(s: Stand, **options: Any) -> Op[Any]:
    s.numbers["new"] = s.numbers.get("new", 0) + 1
    jobs: list[Any] = [
        NewJob(s.payload(), **options) if options else s.payload() for _ in range(s.batch)
    ]
    if "id" in options:
        jobs = [evolve(job, id=f"new-{s.numbers['new']}-{n}") for n, job in enumerate(jobs)]
    return next(iter(queue("new", priorities=LEVELS).batches(jobs)))


def admitted(
    s: Stand, max_waiting: int | None = None, known: bool = False, **conditions: Any
) -> Op[Any]:
    s.numbers["new"] = 0 if known else s.numbers.get("new", 0) + 1
    ops = queue("new", priorities=LEVELS)
    ops = evolve(ops, settings=evolve(ops.settings, max_waiting=max_waiting))
    jobs = [
        NewJob(s.payload(), id=f"if-{s.numbers['new']}-{n}", **conditions) for n in range(s.batch)
    ]
    admission = Admission(ops)
    return admission.chunk(next(admission.chunks(jobs)), awaits=False)


def scheduled(s: Stand) -> Op[Any]:
    ops = queue("schedules")
    if not s.client.exists(ops.keys.key("schedules")):
        for n in range(1000 if s.fill.size < 50_000 else 4 * s.batch + 10):
            build = schedule_ops.schedule(
                ops, f"s{n}", Timing.parse("every 3600000"), "skip", NewJob(s.payload())
            )
            s.run(build(10**12))
    return schedule_ops.schedules(ops)


def ticked(s: Stand) -> Op[Any]:
    """Return a schedule whose missed ticks are all enqueued."""
    ops = queue("ticks")
    s.client.delete(ops.keys.key("ids"), ops.keys.key("schedules"), ops.keys.key("ticks"))
    keys = [ops.keys.key("schedules"), ops.keys.key("ticks")]
    s.client.eval(MISSED, 2, *keys, "missed", "every 1000", 999_000, s.payload())
    plan = schedule_ops.plan_ticks(ops, s.run(schedule_ops.ticking(ops)))
    assert plan.ops, plan
    op: Op[Any] = plan.ops[0]
    return op


def results(s: Stand) -> Op[Any]:
    names = [f"result-{n}" for n in range(99)]
    for name in names:
        s.client.set(s.ops.keys.result(name), s.payload())
    return result_ops.results(s.ops, names)


# -- flows -----------------------------------------------------------------------------------------


def flow(**options: Any) -> FlowOps:
    ops = FlowOps(
        "benchflow", "headrace", None, ["customer"], QueueSettings(dead_limit=10**9, result_ttl=DAY)
    )
    ops.declare("start", ["next"], ["part"], options)
    ops.declare("next", [], [], options)
    ops.declare("part", [], [], options)
    return ops


def runs(s: Stand, number: int) -> tuple[FlowOps, list[Claim]]:
    """Lease so many runs in their first stage."""
    ops, claims = flow(), list[Claim]()
    s.numbers["runs"] = begin = s.numbers.get("runs", 0) + number
    for n in range(number):
        attributes = {"customer": "c"}
        s.run(ops.start(NewJob(s.payload(), f"r{begin - n}"), attributes))
    stage = ops.stages["start"].ops
    while len(claims) < number:
        grant = s.run(stage.lease(WORKER, min(250, number - len(claims)), ttl=DAY))
        assert grant is not None
        claims += grant.claims
    return ops, claims


def steps(
    s: Stand, number: int, make: Callable[[FlowOps, Claim], Any]
) -> tuple[FlowOps, list[Any]]:
    ops, claims = runs(s, number)
    return ops, [ops.step(claim, make(ops, claim)) for claim in claims]


def moved(s: Stand) -> Op[Any]:
    ops, some = steps(s, min(STEPS_PER_SCRIPT, s.some(100)), lambda _, __: None)
    return ops.advance(some)


def moved_with_results(s: Stand) -> Op[Any]:
    ops, some = steps(s, min(STEPS_PER_SCRIPT, s.batch), lambda _, __: s.payload())
    return ops.advance(some)


def fan(s: Stand, number: int) -> tuple[FlowOps, Op[Any]]:
    size = min(s.fill.size, (BYTES_PER_SCRIPT - 100_000) // number)
    ops, some = steps(s, 1, lambda _, __: FanOut([b"x" * size] * number, stage="part", join="next"))
    return ops, ops.advance(some)


def fanned(s: Stand) -> Op[Any]:
    return fan(s, 1000)[1]


def cancelled(s: Stand) -> Op[Any]:
    ops, op = fan(s, 1000)
    assert s.run(op) == [True]
    return ops.advance([ops.cancelling(f"r{s.numbers['runs']}")])


def cancel_events(s: Stand) -> Op[Any]:
    """Return the advance of a page of children that are to be cancelled."""
    s.run(cancelled(s))
    ops = flow()
    return ops.advance(s.run(ops.events())[:STEPS_PER_SCRIPT])


def parents(s: Stand, children: int, result: bytes) -> tuple[FlowOps, list[str]]:
    """Make runs that wait for children, of which all but one have a result."""
    ops, op = fan(s, children)
    s.run(op)
    name = f"r{s.numbers['runs']}"
    stage = ops.stages["part"].ops
    done: list[Any] = []
    while len(done) < children - 1:
        grant = s.run(stage.lease(WORKER, min(250, children - 1 - len(done)), ttl=DAY))
        assert grant is not None
        done += [ops.step(claim, result) for claim in grant.claims]
        for some in chunks(
            done[-len(grant.claims) :], max(1, min(100, BYTES_PER_SCRIPT // (len(result) + 100)))
        ):
            s.run(ops.advance(some))
    return ops, [name]


def flow_read(s: Stand) -> Op[Any]:
    if "parents" not in s.numbers:
        s.client.delete(*s.client.keys("headrace:{benchflow}*"))
        for _ in range(2):
            ops, (name,) = parents(s, 1000 if s.fill.size <= 10_000 else s.some(1000), s.payload())
            s.numbers["parents"] = int(name[1:])
    ops = flow()
    last = s.numbers["parents"]
    return ops.read([f"r{last}", f"r{last - 1}"] * 50)


def flow_find(s: Stand) -> Op[Any]:
    index = flow().keys.key("index")
    if int(s.client.zcard(index)) < 10_000:
        s.client.zadd(index, {f"customer\nmany\n{n:200d}": 0 for n in range(10_000)})
    return flow().found("customer", "many", "")


CASES: Mapping[str, Callable[[Stand], Op[Any]]] = {
    "counts": lambda s: view_ops.counts(s.ops),
    "measure": lambda s: view_ops.measure(s.ops),
    "workers": lambda s: view_ops.workers(s.ops),
    "find, absent": lambda s: view_ops.find(s.ops, "absent"),
    "find, dead": lambda s: view_ops.find(s.ops, s.name("dead", 0)),
    "find, waiting": lambda s: view_ops.find(s.ops, s.name("waiting", -1)),
    "find, delayed": lambda s: view_ops.find(s.ops, s.name("delayed", -1)),
    "peek": lambda s: view_ops.listing(s.ops, "waiting", "", 1),
    "list waiting": lambda s: view_ops.listing(s.ops, "waiting", ""),
    "list waiting, new": lambda s: view_ops.listing(s.ops, "waiting", "new:0 -"),
    "list running": lambda s: view_ops.listing(s.ops, "running", ""),
    "list delayed": lambda s: view_ops.listing(s.ops, "delayed", ""),
    "list dead": lambda s: view_ops.listing(s.ops, "dead", ""),
    "position, last": lambda s: view_ops.position(s.ops, s.name("waiting", -1)),
    "position, 999th": lambda s: view_ops.position(
        s.ops, s.name("parked", min(999, s.fill.each - 1))
    ),
    "cancel_payload": lambda s: admin_ops.cancel_payload(s.ops, b"absent", "jobs", "-"),
    "cancel_payload, delayed": lambda s: admin_ops.cancel_payload(s.ops, b"absent", "delayed", "0"),
    "repair": lambda s: admin_ops.repair(s.ops),
    "repair, ids": lambda s: admin_ops.repair(s.ops, "ids", "0"),
    "repair, bodies": lambda s: admin_ops.repair(s.ops, "bodies", "0"),
    "reclaim, nothing": nothing_expired,
    "reclaim, a step where leases differ": somewhere,
    "reclaim, expired": expired,
    "reclaim, expired, own durations": lambda s: expired(s, duration=0.001),
    "reclaim, expired, with levels": expired_levels,
    "reclaim, a dead worker": a_dead_worker,
    "reclaim, due": promote,
    "reclaim, ageing, 10 levels": ageing,
    "lease 1, parked": lambda s: s.ops.lease("bench.v", 1, ttl=DAY),
    "lease 250, parked": lambda s: s.ops.lease("bench.v", 250, ttl=DAY),
    "lease, parked": lambda s: s.ops.lease("bench.v", 1000, ttl=DAY),
    "lease 250, new": lambda s: s.fresh("new", s.some(1000)).lease(WORKER, 250, ttl=DAY),
    "lease, new": lambda s: s.fresh("new", s.some(1000)).lease(WORKER, 1000, ttl=DAY),
    "lease 250, own duration": lambda s: s.fresh("new", s.some(1000)).lease(
        WORKER, 250, ttl=DAY, duration=9
    ),
    "lease 250, due": due,
    "lease 250, keyed, one hot key": hot,
    "lease 250, 10 levels": lease_levels,
    "lease 250, an heir": heir,
    "lease 250, an heir, levels": heir_levels,
    "renew": lambda s: s.ops.renew(s.claims(CLAIMS_PER_SCRIPT)),
    "release": lambda s: s.ops.release(s.claims(CLAIMS_PER_SCRIPT)),
    "release, paused": lambda s: s.ops.release(s.claims(CLAIMS_PER_SCRIPT), pause=60),
    "retry": lambda s: s.ops.retry(
        [(c, None, 1, "no good") for c in s.claims(REWRITES_PER_SCRIPT)]
    ),
    "retry, delayed": lambda s: s.ops.retry(
        [(c, 60.0, 1, "no good") for c in s.claims(REWRITES_PER_SCRIPT)]
    ),
    "dead_letter": lambda s: s.ops.dead_letter(
        [(c, "no good") for c in s.claims(REWRITES_PER_SCRIPT)]
    ),
    "complete 1000": lambda s: s.ops.complete(s.claims(1000)),
    "complete, fenced": lambda s: s.ops.complete(s.claims(CLAIMS_PER_SCRIPT), fenced=True),
    "complete 100, with ids": lambda s: s.ops.complete(s.claims(100, named=True)),
    "complete 250, with results": with_results,
    "complete, 1,000 follow-ups": lambda s: followed(s, 1000),
    "enqueue": enqueued,
    "enqueue, with ids": lambda s: enqueued(s, id=""),
    "enqueue, delayed": lambda s: enqueued(s, delay=60.0),
    "enqueue, of a level": lambda s: enqueued(s, priority=5),
    "enqueue_if, room for some": lambda s: admitted(s, max_waiting=10**9),
    "enqueue_if, throttle": lambda s: admitted(s, if_exists=Throttle(60)),
    "enqueue_if, replace": lambda s: admitted(s, if_exists=Replace(), known=True),
    "cancel": lambda s: admin_ops.cancel(s.ops, s.name("waiting", -s.fill.waiting // 2)),
    "reschedule": lambda s: admin_ops.reschedule(s.ops, s.name("delayed", 500), 99.0),
    "schedules": scheduled,
    "tick, 1,000 missed": ticked,
    "results": results,
    "fail_worker": lambda s: admin_ops.fail_worker(held_by(s, "bench.f"), "bench.f"),
    "leave": lambda s: held_by(s, "bench.g").leave("bench.g"),
    "expire": lambda s: admin_ops.expire(s.ops, "-", []),
    "redrive": lambda s: admin_ops.redrive(s.ops, "-", []),
    "redrive, no such id": lambda s: admin_ops.redrive(s.ops, "-", ["absent"]),
    "purge_dead": lambda s: admin_ops.purge_dead(s.ops, "-", []),
    "purge_dead, no such id": lambda s: admin_ops.purge_dead(s.ops, "-", ["absent"]),
    "move": lambda s: admin_ops.move(s.ops, "bench/other", "-", []),
    "move, delayed": lambda s: admin_ops.move(s.ops, "bench/other", "delayed 0", []),
    "purge, delayed": lambda s: admin_ops.purge(s.ops, "-"),
    "purge, parked": lambda s: admin_ops.purge(s.ops, "jobs -"),
    "flow_advance, steps": moved,
    "flow_advance, results": moved_with_results,
    "flow_advance, 1,000 children": fanned,
    "flow_advance, cancel with 1,000": cancelled,
    "flow_advance, events": cancel_events,
    "flow_events": lambda _: flow().events(),
    "flow_find": flow_find,
    "flow_read": flow_read,
    "delete": deleted,
    "delete, flows": deleted_flows,
}
