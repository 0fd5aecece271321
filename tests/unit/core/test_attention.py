"""Decisions about what needs attention. They read counts, workers and the server's facts. A sound
queue needs none."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from headrace._core.views.attention import FULL, Look, admits, attention, lag_allowed, usual_lag
from headrace._core.views.overview import facts_of, joined
from headrace._model.job import KEY
from headrace._model.policy import Rate
from headrace._model.settings import QueueSettings
from headrace._model.state import Counts, OtherTerms, WorkerState
from headrace._model.views.outbox import OutboxView
from headrace._model.views.overview import Overview, ServerFacts, Totals
from headrace._model.views.queues import QueueView
from headrace._model.views.trends import TrendPoint
from headrace._protocol.view_ops import Signs
from tests.support.facts import each

ALIVE = WorkerState("w.1", "q", 0.0, 10.0, 0, alive=True)
OTHERS = OtherTerms("", 2.0)
DIFFERING = tuple(evolve(ALIVE, name=f"w{at}.1", differs=OTHERS) for at in range(5))
THAN = "other terms than the queue's, `fair=x limits= rates=`:"
OLDEST = "the oldest job has waited"
DEAD = WorkerState("w.2", "q", 0.0, 1.0, 0, alive=False)


def view(name: str = "q", lag: float = 0.0, **facts: Any) -> QueueView:
    """Return a queue with these counts. A live worker serves it unless *facts* say otherwise."""
    given = {"paused": False, "workers": (ALIVE,), "levels": 1, **facts}
    counts = {field: given.pop(field) for field in list(given) if hasattr(Counts(), field)}
    there = sum(
        counts.get(state, 0)
        for state in ("waiting", "parked", "leased", "delayed", "blocked", "dead")
    )
    return QueueView(name, Counts(**{"enqueued": there, **counts}), lag, **given)


def told(queue: QueueView, look: Look | None = None, **server: Any) -> list[tuple[str, str, bool]]:
    found = attention([queue], {} if look is None else {queue.name: look}, {}, **server, now=122.0)
    return [(one.kind, one.text, one.bad) for one in found]


@each(
    ("queue", "look", "expected"),
    [
        (view(), None, []),
        (view(waiting=5, leased=1, delayed=2, dead=3, lag=299.0), None, []),
        (view(waiting=1, workers=()), None, [("no worker", "1 job waits, and no worker is alive", True)]),
        (view(parked=2, workers=(DEAD,)), None, [("no worker", "2 jobs wait, and no worker is alive", True)]),
        (view(delayed=2, workers=()), None, []),
        (view(paused=True), None, [("paused", "paused", False)]),
        (view(paused=True, waiting=1200, workers=(), lag=999.0), None, [("paused", "paused, 1,200 jobs wait", False)]),
        (view(enqueued=2), None, [("unbalanced", "the counts do not add up: 2 missing", True)]),
        (view(waiting=1, lag=301.0), None, [("oldest", f"{OLDEST} 5 min", False)]),
        (view(waiting=1, lag=301.0), Look(usual=100.0), [("oldest", f"{OLDEST} 5 min, usually 1.7 min", False)]),
        (view(waiting=1, lag=301.0), Look(usual=101.0), []),
        (view(waiting=1, lag=59.0), Look(usual=0.0), []),
        (view(waiting=1, lag=61.0), Look(usual=0.0), [("oldest", f"{OLDEST} 1 min, usually 0 s", False)]),
        (view(dead=1), Look(Signs(1)), [("dead", "1 new dead letter in the last hour", True)]),
        (view(dead=9), Look(Signs(7)), [("dead", "7 new dead letters in the last hour", True)]),
        (view(workers=(ALIVE, evolve(DEAD, differs=OTHERS))), None, []),
        (
            view(terms="fair=x limits= rates=", workers=DIFFERING),
            None,
            [
                (
                    "terms",
                    f"5 workers declare {THAN} w0 none for 2 min, w1 none for 2 min, w2 none for 2 min, 2 more",
                    False,
                )
            ],
        ),
        (view(dead=9), Look(Signs(7, more=True)), [("dead", "at least 7 new dead letters in the last hour", True)]),
        (view(), Look(Signs(7, 7)), []),  # they have been redriven since
        (view(dead=2), Look(Signs(0, 2)), [("unknown kind", "2 jobs died: no worker had a handler", True)]),
        (
            view(waiting=1),
            Look(Signs(kinds=("a\x00", ""))),
            [("unknown kind", r"no worker has a handler for a\x00, jobs without a kind", True)],
        ),
        (view(delayed=5), Look(Signs(held=3)), [("rate", "a rate limit holds back 3 jobs", False)]),
        (view(), Look(Signs(held=3, kinds=("a",)), admits=False), []),
        (view(waiting=5), Look(admits=False), [("rate", "a rate limit holds back the jobs, 5 jobs wait", False)]),
        (
            view(outbox=OutboxView("r", 7, 1.0, 0, ended=False, age=61.0)),
            None,
            [("outbox", "the relay of its outbox is dead, 7 rows wait", True)],
        ),
        (view(outbox=OutboxView("r", 7, 1.0, 0, ended=True, age=61.0)), None, []),
        (
            view(outbox=OutboxView("r", 7, 1.0, 2, ended=True)),
            None,
            [("outbox", "2 rows of its outbox can't be relayed", True)],
        ),
    ],
)  # fmt: skip
def test_of_a_queue(
    queue: QueueView, look: Look | None, expected: list[tuple[str, str, bool]]
) -> None:
    assert told(queue, look) == expected


def test_of_the_server() -> None:
    """The server is reported when its memory is nearly full, or when it has refused commands.
    Without a limit it is never full.
    """
    full = [("server", "90% of its memory is used", True)]
    assert told(view(), server=ServerFacts("Redis", "8", "x", 90, 100)) == full
    assert told(view(), server=ServerFacts("Redis", "8", "x", int(1000 * FULL) - 1, 1000)) == []
    assert told(view(), server=ServerFacts("Redis", "8", "x", 90, 0)) == []
    refused = [("server", "out of memory: it has refused 12 commands of late", True)]
    assert told(view(), server=ServerFacts("Redis", "8", "x", 1, 0), refused=12) == refused
    assert told(view(), server=None, refused=12) == []


def test_the_worst_come_first() -> None:
    """Queues with equal problems keep their order. Unreadable queues are sorted like the others."""
    queues = [view("a", paused=True), view("b", waiting=1, workers=()), view("c", paused=True)]
    found = attention(queues, {}, {"x": "WRONGTYPE"})
    assert [(one.queue, one.kind) for one in found] == [
        ("x", "unreadable"), ("b", "no worker"), ("a", "paused"), ("c", "paused"),
    ]  # fmt: skip


def test_the_usual_wait() -> None:
    points = [
        TrendPoint(60.0 * at, 60.0, 0, 0, 0, 0, 0, 0, 0, lag)
        for at, lag in enumerate([1.0] * 6 + [500.0] * 5)
    ]
    assert usual_lag(points) == 1.0
    assert usual_lag(points[:9]) is None
    assert [lag_allowed(usual) for usual in (None, 0.0, 100.0)] == [300.0, 60.0, 300.0]


def test_rate_limits_of_the_whole_queue() -> None:
    """A bucket of 5 tokens of 200 ms admits a job until it lacks more than four of them."""
    declared = QueueSettings(
        rate=[Rate(5), Rate(1, key="k"), Rate(1, per=2.5, burst=3)]
    ).declared()["rate"]
    assert admits(declared, (801, 9999, 5001))
    assert not admits(declared, (802, 0, 0))
    assert not admits(declared, (0, 0, 5002))
    split = QueueSettings(
        rate=[Rate(1, key=KEY), Rate(4, burst=2, per_shard=True)], shards=4
    ).declared()["rate"]
    assert admits(split, (9999, 1), 0.25)
    assert not admits(split, (0, 2), 0.25)
    assert admits(split, (0, 251))
    assert not admits(split, (0, 252))
    assert admits("", (9999,))
    assert admits("5 a second", (9999,))


def test_signs_of_shards_are_joined() -> None:
    one = Signs(1, 2, more=False, held=3, buckets=(0, 7), kinds=("a", "b"))
    other = Signs(10, 20, more=True, held=30, buckets=(5, 6), kinds=("b", "c"))
    assert joined([one, other]) == Signs(11, 22, more=True, held=33, kinds=("a", "b", "c"))
    assert joined([]) == Signs()


def test_facts_of_a_cluster_are_of_the_fullest_primary() -> None:
    """Redis and Valkey are told apart by their own fields. A missing field counts as nothing."""
    redis = "# Server\r\nredis_version:7.2.4\r\nused_memory:50\r\nmaxmemory:100\r\nerrorstat_OOM:count=2\r\n"
    valkey = "redis_version:7\r\nvalkey_version:9.1.0\r\nused_memory:80\r\nmaxmemory:100\r\nerrorstat_OOM:count=3\r\n"
    assert facts_of([redis, valkey], "here") == ServerFacts("Valkey", "9.1.0", "here", 80, 100, 5)
    assert facts_of([redis], "here").text == "Redis 7.2.4 at here"
    assert facts_of([""], "") == ServerFacts("Redis", "", "")


def test_totals() -> None:
    """A worker of two queues counts once. A queue without rates is left out of the sum."""
    again = WorkerState("w.3", "b", 0.0, 10.0, 0, alive=True)
    queues = [
        view("a", waiting=1, parked=2, lag=3.0, rates={"enqueued": 1.5, "completed": 0.5}),
        view(
            "b",
            leased=1,
            dead=4,
            delayed=2,
            blocked=1,
            completed=7,
            enqueued=15,
            lag=2.0,
            workers=(again,),
        ),
    ]
    assert Totals.of(queues) == Totals(3, 1, 2, 1, 4, 7, 1.5, 0.5, 3.0, 1)
    assert Totals.of([]) == Totals(0, 0, 0, 0, 0, 0, None, None, 0.0, 0)


def test_throughput_counts_queues_that_both_looks_have() -> None:
    """A queue that was deleted and began again adds only its own jobs."""
    looks = ((0.0, {"a": (10, 0), "b": (5, 5)}), (2.0, {"a": (14, 2), "b": (0, 0), "c": (9, 9)}))
    view = Overview(2.0, (), True, looks=looks)
    assert view.throughput(["a", "b", "c"]) == ((2.0, 2.0, 1.0),)
    assert view.throughput([]) == ((2.0, 0.0, 0.0),)
    assert Overview(2.0, (), True).throughput(["a"]) == ()
