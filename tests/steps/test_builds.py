"""Runs remember the build of the worker that began them, and are listed by it."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from headrace import AsyncWorker, Job, NewJob, Queue, Retry, Tasks, Worker
from headrace._model.builds import continues
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.script import script
from headrace.errors import ConfigurationError, RunSuspended
from headrace.inspect import Inspector, RunState
from headrace.testing import run, travel
from tests.scripts.conftest import TERM
from tests.steps.conftest import DAY, Runs
from tests.support.awaiting import until
from tests.support.colours import Connect
from tests.support.facts import each
from tests.support.servers import Server
from tests.support.steps import leased, suspend, waiting_run


def test_the_first_record_has_the_build(runs: Runs) -> None:
    """A build is noted once, by the holder, before the first record."""
    entry = runs.begin("i")
    assert runs("build", "w", entry, 2, "i", "", "b0") == 0  # another delivery
    assert runs("build", "w", entry, 1, "i", "", "b1") == 1
    assert runs("build", "w", entry, 1, "i", "", "b2") == 0
    assert runs.step(entry, "charge") == 1
    assert runs("steps", "i", "")[-1] == ["b1"]
    assert runs("find", "i", "")[3][-1] == ["b1"]
    head, nobody = runs("runs", "i", "", "nobody", "")
    assert [head[0], *head[2:], nobody] == [1, "charge", "step", 0, "b1", "", 0, []]


def napping(url: str, build: str | None) -> Worker:
    worker = Worker(url, build=build)

    @worker.handler("q")
    def work(job: Job) -> None:
        job.step("charge", int)
        job.sleep("nap", 1000)
        job.step("ship", int)
        job.sleep("rest", 1000)

    return worker


def test_a_run_without_a_build_gets_none_later(newest: Server) -> None:
    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"x", id="i")
        for build in (None, "b1"):
            run(napping(newest.url, build), newest.url, until_empty=False)
            travel(newest.url, 2000)
        found = queue.find("i")
        assert found is not None
        assert [step.name for step in found.steps] == ["charge", "nap", "ship", "rest"]
        assert found.build == ""


def test_a_dead_letter_keeps_its_build(runs: Runs) -> None:
    entry = runs.begin("i")
    assert runs("build", "w", entry, 1, "i", "", "b1") == 1
    for name in "abc":
        runs.step(entry, name)
    assert runs("dead_letter", "w", 1000, entry, 1, "why") == [1]
    assert runs("redrive", "-", 10, "b", "", "i") == [1, ""]
    runs.lease()
    assert runs.names() == ["a", "b1"]


def test_a_server_that_does_not_know_the_script_of_builds(newest: Server) -> None:
    """The build is sent again, and then comes behind the first record."""
    with Queue("q", url=newest.url) as queue, redis.Redis.from_url(newest.url) as client:
        queue.enqueue(b"x", id="i")
        client.script_flush()
        client.script_load(script("step").source)
        run(napping(newest.url, "b1"), newest.url, until_empty=False)
        found = queue.find("i")
        assert found is not None
        assert found.build == "b1"


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_job_knows_the_build_of_its_run(newest: Server, colour: str) -> None:
    """It is the build that began the run, also in a worker of another build."""
    seen = list[str]()

    def work(job: Job) -> None:
        seen.append(job.build)
        job.step("charge", int)
        seen.append(job.build)
        job.sleep("nap", 1000)
        seen.append(job.build)

    async def work_async(job: Job) -> None:
        seen.append(job.build)
        await job.step("charge", int)
        seen.append(job.build)
        await job.sleep("nap", 1000)
        seen.append(job.build)

    def worker(build: str | None) -> Any:
        kind: Any = Worker if colour == "sync" else AsyncWorker
        made = kind(newest.url, build=build)
        made.handler("q")(work if colour == "sync" else work_async)
        return made

    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"x", id="i")
        run(worker("b1"), newest.url, until_empty=False)
        found = queue.find("i")
        assert found is not None
        assert found.build == "b1"
        assert [step.name for step in found.steps] == ["charge", "nap"]
        (one,) = queue.admin.runs()
        assert (one.id, one.state, one.at, one.build) == ("i", "delayed", "nap", "b1")
        travel(newest.url, 2000)
        run(worker("b2"), newest.url)
    assert seen == ["", "b1", "", "b1", "b1"]


def test_the_default_is_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BUILD", "b7")
    assert Worker("redis://localhost:1").build == "b7"
    assert AsyncWorker("redis://localhost:1", build="b8").build == "b8"
    assert Worker("redis://localhost:1", build="").build == ""
    with pytest.raises(ValueError, match="build of 201 characters"):
        Worker("redis://localhost:1", build="b" * 201)
    with pytest.raises(ValueError, match="printable ASCII"):
        Worker("redis://localhost:1", build='b"1')
    with pytest.raises(TypeError, match="build must be a str"):
        Worker("redis://localhost:1", build=5)  # type: ignore[arg-type]


def test_runs_are_listed(connect: Connect) -> None:
    """Suspended and running runs are listed with where they stand. Other jobs are not."""
    queue: Any = connect("q")
    queue.enqueue(b"no run")
    queue.enqueue(b"no run", delay=1000)
    assert queue.lease() is not None
    for name, kind in (("s", "sleep"), ("w", "wait")):
        lease = leased(queue, id=name)
        ops = queue._verbs.map.at(lease.job.shard)
        queue._run(step_ops.build(ops, lease.claim, f"of {name}"))
        suspend(queue, lease.claim, f"at {name}", kind, "+86400000")
    lease = leased(queue, id="r")
    ops = queue._verbs.map.at(lease.job.shard)
    op = step_ops.record(ops, lease.claim, 0, "charge", None, ended=True, took=0.0, ttl=0.0)
    assert queue._run(op) == 1
    found = {one.id: one for one in queue.admin.runs()}
    assert {name: (one.state, one.at, one.kind, one.build) for name, one in found.items()} == {
        "s": ("delayed", "at s", "sleep", "of s"),
        "w": ("blocked", "at w", "wait", "of w"),
        "r": ("leased", "charge", "step", ""),
    }
    assert found["s"].due > found["s"].began > 1e9
    for state, name in (("delayed", "s"), ("blocked", "w"), ("leased", "r")):
        assert [one.id for one in queue.admin.runs(state=state)] == [name]
    assert [one.id for one in queue.admin.runs(build="of w")] == ["w"]
    assert [one.id for one in queue.admin.runs(build="")] == ["r"]
    assert queue.release(lease)
    assert "r" not in {one.id for one in queue.admin.runs()}
    (waiting,) = queue.admin.runs(state="waiting")
    assert (waiting.id, waiting.state, waiting.at) == ("r", "parked", "charge")
    assert queue.dead_letter(queue.lease(), "why")
    (dead,) = queue.admin.runs(state="dead")
    assert (dead.id, dead.state, dead.at) == ("r", "dead", "charge")
    with pytest.raises(ValueError, match="state='gone'"):
        list(queue.admin.runs(state="gone"))


def test_an_open_wait_is_where_a_run_stands(newest: Server) -> None:
    """Steps beside a wait are recorded after it."""
    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"x", id="i")
        lease = queue.lease()
        assert lease is not None
        with pytest.raises(RunSuspended):
            lease.job.wait_for("go")
        waiting_run(queue, "w")
        assert {one.id: one.at for one in queue.admin.runs()} == {"i": "go", "w": "approved"}


def held_worker(url: str, colour: str, build: str, rule: str, seen: list[str]) -> Any:
    """Make a worker whose handler waits for a signal between two steps."""

    def work(job: Job) -> None:
        seen.append(build)
        job.step("charge", int)
        job.wait_for("go")
        job.step("ship", int)

    async def work_async(job: Job) -> None:
        seen.append(build)
        await job.step("charge", int)
        await job.wait_for("go")
        await job.step("ship", int)

    made: Any = (Worker if colour == "sync" else AsyncWorker)(url, build=build)
    made.handler("q", runs=rule)(work if colour == "sync" else work_async)
    return made


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(
    ("rule", "wrong", "right", "waits_for"),
    [("same", "b2", "b1", "b1"), ("at_least", "b0", "b10", "b1 or later")],
)
def test_a_run_waits_for_its_build(
    newest: Server,
    colour: str,
    rule: str,
    wrong: str,
    right: str,
    waits_for: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker of another build holds the run back, and spends no attempt."""
    seen = list[str]()
    url = newest.url
    with Queue("q", url=url) as queue:
        queue.enqueue(b"x", id="i")
        run(held_worker(url, colour, "b1", rule, seen), url, until_empty=False)
        queue.signal("i", "go")

        found = list[RunState]()

        def held() -> bool:
            # on a slow machine it may be due again before its worker has stopped
            run(held_worker(url, colour, wrong, rule, seen), url, until_empty=False)
            found[:] = queue.admin.runs(waits_for="b1")
            return bool(found)

        for _ in range(3):
            until(held, "a run that is held back")
            (one,) = found
            assert (one.id, one.state, one.build) == ("i", "delayed", "b1")
            assert one.waits_for == waits_for
            assert list(queue.admin.runs(waits_for="b2")) == []
            travel(url, 100)
        state = queue.find("i")
        assert state is not None
        assert [step.name for step in state.steps] == ["charge", "go"]
        assert state.job.attempt == 1
        run(held_worker(url, colour, right, rule, seen), url)
        assert queue.counts().completed == 1
    assert (seen[0], seen[-1], {*seen[1:-1]}) == ("b1", right, {wrong})
    missing = [
        vars(one)["step"] for one in caplog.records if vars(one).get("event") == "build_missing"
    ]
    assert {*missing} == {waits_for}


def test_time_passes_for_a_run_that_is_held_back(newest: Server) -> None:
    """It is still told, and its build finds it."""
    url = newest.url
    client = newest.client()
    with Queue("q", url=url) as queue:
        queue.enqueue(b"x", id="i")
        run(held_worker(url, "sync", "b1", "same", []), url, until_empty=False)
        queue.signal("i", "go")
        with held_worker(url, "sync", "b2", "same", []):
            until(lambda: next(queue.admin.runs(waits_for="b1"), None), "a run that is held back")
        (entry,) = client.hkeys("headrace:{q}:q:pinned")
        before = client.zscore("headrace:{q}:q:asleep", entry)
        travel(url, 1)
        assert client.zscore("headrace:{q}:q:asleep", entry) == before - 1000
        assert client.hget("headrace:{q}:q:pinned", entry) == f"{before - 1000:.0f} b1".encode()
        (one,) = queue.admin.runs(waits_for="b1")
        assert one.due == (before - 1000) / 1000


@pytest.mark.parametrize("ordered", [False, True])
def test_runs_that_a_retry_delays_are_listed(newest: Server, ordered: bool) -> None:
    """Delayed jobs without steps are not read. A run of an ordered queue keeps its turn."""
    worker = Worker(newest.url)

    def body(job: Job) -> None:
        job.step("charge", int)
        raise ValueError("later")

    worker.handler("q", retry=Retry(attempts=3, wait=600), ordered=ordered)(body)
    with Queue("q", url=newest.url, ordered=ordered) as queue:
        queue.enqueue_many([NewJob(b"x", id=f"late-{n}", delay=3600) for n in range(300)])
        queue.enqueue_many([NewJob(b"x", id=f"i-{n}", key=f"k{n}") for n in range(3)])
        with worker:
            until(lambda: queue.counts().delayed == 303, "delayed runs")
        found = {one.id: (one.state, one.at, one.due is not None) for one in queue.admin.runs()}
    assert found == {f"i-{n}": ("delayed", "charge", True) for n in range(3)}


@pytest.mark.slow
def test_a_missing_build_needs_attention(newest: Server) -> None:
    """It does so while no living worker has the build."""
    url = newest.url
    with Queue("q", url=url) as queue, Inspector(url=url, fresh=0.0) as look:
        queue.enqueue(b"x", id="i")
        run(held_worker(url, "sync", "b1", "same", []), url, until_empty=False)
        queue.signal("i", "go")

        def told() -> bool:
            return any(
                one.kind == "build" and "build b1, which no living" in one.text
                for one in look.overview().attention
            )

        with held_worker(url, "sync", "b2", "same", []):
            until(told, "attention", 40)


def test_a_worker_takes_the_runs_that_wait_for_it(newest: Server) -> None:
    """It does so long before they are due, and beside a worker that may not continue them."""
    seen = list[str]()
    url = newest.url
    client = newest.client()
    with Queue("q", url=url) as queue:
        queue.enqueue(b"x", id="i")
        run(held_worker(url, "sync", "b1", "same", seen), url, until_empty=False)
        queue.signal("i", "go")
        with held_worker(url, "sync", "b2", "same", seen):
            until(lambda: next(queue.admin.runs(waits_for="b1"), None), "a run that is held back")
            (entry,) = client.hkeys("headrace:{q}:q:pinned")
            due = int(client.zscore("headrace:{q}:q:asleep", entry)) + 3_600_000
            client.zadd("headrace:{q}:q:asleep", {entry: due})
            client.hset("headrace:{q}:q:pinned", entry, f"{due} b1")
            with held_worker(url, "sync", "b1", "same", seen):
                until(lambda: queue.counts().completed == 1, "its end")
        assert not client.exists("headrace:{q}:q:pinned")


def test_tasks_wait_for_their_build(newest: Server) -> None:
    def serving(build: str) -> tuple[Worker, Any]:
        tasks = Tasks("q", newest.url)

        @tasks.task(name="ship")
        def ship() -> None:
            tasks.job.step("charge", int)
            tasks.job.wait_for("go")

        worker = Worker(newest.url, build=build)
        worker.tasks(tasks, runs="same")
        return worker, ship

    worker, ship = serving("b1")
    name = ship.enqueue().id
    run(worker, newest.url, until_empty=False)
    with Queue("q", url=newest.url) as queue:
        assert queue.signal(name, "go") == "woke"
        with serving("b2")[0]:
            until(lambda: next(queue.admin.runs(waits_for="b1"), None), "a run that is held back")
            with serving("b1")[0]:
                until(lambda: queue.counts().completed == 1, "its end")


def test_a_held_run_is_let_go_for_its_build(runs: Runs) -> None:
    entry = runs.begin("i")
    assert runs("build", "w", entry, 1, "i", "", "b1") == 1
    assert runs.step(entry, "charge") == 1
    assert runs("hold", "w", entry, 1, 1, "i", "", "+5", "b1 or later")[0] == 1
    assert runs("reclaim", "v", 10_000, TERM, 500, 1)[7:] == [0, "b1"]
    assert runs("unpin", 10, "b0", "b1 or later") == 0
    assert runs.leases_nothing()
    assert runs("unpin", 10, "b0", "b1") == 1
    assert runs.lease() == entry
    assert runs("reclaim", "v", 10_000, TERM, 500, 1)[7:] == []


def test_a_run_that_sleeps_on_its_own_waits_for_no_build(runs: Runs) -> None:
    """The next look forgets that it was held back before."""
    entry = runs.begin("i")
    assert runs("build", "w", entry, 1, "i", "", "b1") == 1
    assert runs.step(entry, "charge") == 1
    assert runs("hold", "w", entry, 1, 1, "i", "", "+5", "b1")[0] == 1
    asleep = runs.lua.key("asleep")
    due = runs.lua.redis.zscore(asleep, entry)
    runs.lua.redis.zadd(asleep, {entry: 1})
    assert runs.lease() == entry
    runs.suspend(entry, "nap", "sleep", f"+{DAY}")
    assert runs("unpin", 10, "b1") == 0
    assert runs.lua.redis.zscore(asleep, entry) > due
    assert runs("reclaim", "v", 10_000, TERM, 500, 1)[7:] == []


def test_rules_that_are_wrong() -> None:
    worker = Worker("redis://localhost:1")
    with pytest.raises(ConfigurationError, match="give the worker its build="):
        worker.tasks(Tasks("q"), runs="at_least")
    with pytest.raises(ConfigurationError, match="give the worker its build="):
        worker.handler("q", runs="same")
    with pytest.raises(ValueError, match="runs='some': give one of any, same, at_least"):
        worker.handler("q", runs="some")


@each(
    ("rule", "own", "begun_by", "goes_on"),
    [
        ("any", "a", "b", True),
        ("same", "a", "b", False),
        ("same", "a", "", True),
        ("at_least", "v10", "v9", True),
        ("at_least", "v9", "v10", False),
        ("at_least", "2026.11.28-abc", "2026.2.1", True),
        ("at_least", "2026.11", "2026.11.1", False),
        ("at_least", "v1", "1", False),
    ],
)
def test_which_builds_continue_a_run(rule: str, own: str, begun_by: str, goes_on: bool) -> None:
    assert continues(rule, own, begun_by) == goes_on
