"""A client in another language beside Python's. Each takes the other's jobs, and every promise
holds for both."""

from __future__ import annotations

import random
import re
import shlex
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import redis

from headrace import Job, NewJob, Queue, Worker
from headrace._protocol.script import script
from headrace.errors import RunSuspended
from tests.interop.conftest import Agent, Agents, Node
from tests.support.awaiting import until
from tests.support.program import PATIENCE, Started
from tests.support.proxy import Proxy
from tests.support.servers import Server

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PREFIX = "headrace:{q}:q:"


@pytest.fixture
def admin(newest: Server) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=newest.path, decode_responses=True) as client:
        yield client


def run(queue: Queue, op: Any) -> Any:
    return queue._executor.run(op)


# -- producing -------------------------------------------------------------------------------------


def test_what_node_enqueues_python_leases(agents: Agents, server: Server) -> None:
    node = agents(server)
    with Queue("q", url=server.url) as queue:
        jobs = [
            "plain",
            {"payload": "named", "id": "å/1", "headers": {"traceparent": "00-1-2-01", "x": "ü"}},
        ]
        first, second = node("enqueue", jobs)
        assert (second["id"], first["added"], second["added"]) == ("å/1", True, True)
        plain, named = (lease.job for lease in queue.lease_many(2))
        assert (plain.id, plain.payload, plain.headers, plain.attempt) == (
            first["id"],
            b"plain",
            {},
            1,
        )
        assert (named.id, named.payload, named.attempt) == ("å/1", b"named", 1)
        assert named.headers == {"traceparent": "00-1-2-01", "x": "ü"}


def test_what_python_enqueues_node_leases(agents: Agents, server: Server) -> None:
    node = agents(server)
    with Queue("q", url=server.url) as queue:
        ids = [queue.enqueue(b"plain").id, queue.enqueue(b"named", id="a", headers={"x": "ü"}).id]
        plain, named = node("lease", "w", 10, {"ttl": 70_000})["jobs"]
        assert [(job["id"], job["payload"], job["headers"]) for job in (plain, named)] == [
            (ids[0], "plain", {}),
            ("a", "named", {"x": "ü"}),
        ]
        assert queue.counts().leased == 2
        assert node("complete", [plain, named]) == [True, True]
        assert node("complete", [plain, named]) == [False, False]
        counts = queue.counts()
        assert (counts.completed, counts.present, counts.lost) == (2, 0, 0)


def test_a_thousand_jobs_and_more_than_one_call_takes(agent: Agent, python: Queue) -> None:
    sizes = [{"payload": "x" * 3000, "id": f"l{n}"} for n in range(700)]
    for jobs in ([f"p{n}" for n in range(2500)], sizes):
        receipts = agent("enqueue", jobs)
        assert len({receipt["id"] for receipt in receipts}) == len(jobs)
        assert all(receipt["added"] for receipt in receipts)
    assert python.counts().waiting == 3200
    payloads = [state.job.payload for state in python.admin.waiting()]
    assert payloads == [b"p%d" % n for n in range(2500)] + [b"x" * 3000] * 700


def test_an_id_is_one_job_whoever_adds_it(agent: Agent, python: Queue) -> None:
    assert python.enqueue(b"first", id="a").added
    assert agent("enqueue", [{"payload": "second", "id": "a"}]) == [{"id": "a", "added": False}]
    (job,) = agent("lease", "w", 10, {"ttl": 70_000})["jobs"]
    assert job["payload"] == "first"
    assert not python.enqueue(b"third", id="a").added
    assert agent("complete", [job]) == [True]
    assert agent("enqueue", [{"payload": "fourth", "id": "a"}]) == [{"id": "a", "added": True}]
    assert not python.enqueue(b"fifth", id="a").added
    assert agent("cancel", "a")
    assert python.enqueue(b"sixth", id="a").added


def test_node_signals_a_run_of_python(agent: Agent, python: Queue) -> None:
    """The client also reads the run's records."""
    python.enqueue(b"x", id="a")
    job = python.lease().job
    assert job.step("charge", lambda: {"paid": 7}) == {"paid": 7}
    assert job.step("scan", lambda: b"raw") == b"raw"
    with pytest.raises(RunSuspended):
        job.wait_for("approved", 60)
    charge, scan, wait = agent("steps", "a")
    assert (charge["name"], charge["kind"], charge["attempt"], charge["value"]) == (
        "charge",
        "step",
        1,
        {"paid": 7},
    )
    assert (scan["value"], wait["kind"], wait["ended"], wait["value"]) == ("raw", "wait", 0, None)
    assert wait["due"] - wait["began"] == 60_000
    assert agent("signal", "a", "approved", {"by": "ada"}) == "woke"
    assert agent("signal", "a", "approved") == "present"
    assert python.lease().job.wait_for("approved") == {"by": "ada"}


def test_two_producers_of_the_same_ids(agents: Agents, newest: Server, python: Queue) -> None:
    """Each id is enqueued once. The first producer gets True and the other False."""
    ids = [f"id{n}" for n in range(400)]
    orders = [random.Random(seed).sample(ids, len(ids)) for seed in (1, 2)]
    node, together = agents(newest), Barrier(2)
    parts = [[order[at : at + 5] for at in range(0, len(order), 5)] for order in orders]

    def by_node() -> list[dict[str, Any]]:
        receipts: list[dict[str, Any]] = []
        for part in parts[0]:
            together.wait(PATIENCE)
            receipts += node("enqueue", [{"payload": "node", "id": name} for name in part])
        return receipts

    def by_python() -> list[Any]:
        receipts: list[Any] = []
        for part in parts[1]:
            together.wait(PATIENCE)
            receipts += python.enqueue_many([NewJob(b"python", id=name) for name in part])
        return receipts

    with ThreadPoolExecutor(2) as pool:
        theirs, ours = pool.submit(by_node), pool.submit(by_python)
    added = {
        "node": {r["id"] for r in theirs.result() if r["added"]},
        "python": {r.id for r in ours.result() if r.added},
    }
    assert added["node"] | added["python"] == set(ids)
    assert not added["node"] & added["python"]
    assert added["node"], "Node was never first"
    assert added["python"], "Python was never first"
    found = {lease.job.id: lease.job.payload.decode() for lease in python.lease_many(1000)}
    assert found == {name: who for who, names in added.items() for name in names}


def test_delays(agent: Agent, python: Queue) -> None:
    later, moment = 60_000, {"at": 4_000_000_000_000}
    agent("enqueue", [{"payload": "a", "id": "a", "delay": later}, {"payload": "b", "delay": 1}])
    agent(
        "enqueue",
        [
            {"payload": "c", "id": "c", "delay": moment},
            {"payload": "d", "id": "d", "delay": {"at": 1}},
        ],
    )
    due = {state.job.id: state.due for state in python.admin.delayed()}
    assert due["c"] == 4e9
    assert 4e9 > (due["a"] or 0) > 1e9
    assert {python.lease(block=20).job.payload for _ in range(2)} == {b"b", b"d"}  # type: ignore[union-attr]


# -- settling --------------------------------------------------------------------------------------


def test_release_and_retry_cross_the_border(agent: Agent, python: Queue) -> None:
    python.enqueue_many([NewJob(b"1", id="a"), NewJob(b"2", id="b")])
    (job,) = agent("lease", "w", 1, {"ttl": 70_000})["jobs"]
    assert agent("release", [job]) == [True]
    assert agent("release", [job]) == [False]
    lease = python.lease()
    assert lease is not None
    assert (lease.job.id, lease.job.attempt, lease.token) == ("a", 1, 2)  # the front; nothing spent
    assert lease.retry(reason="later")
    second, first = agent("lease", "w", 10, {"ttl": 70_000})["jobs"]
    assert [(job["id"], job["attempt"], job["token"]) for job in (second, first)] == [
        ("b", 1, 1),
        ("a", 2, 3),
    ]
    assert agent("retry", [first], {"delay": 60_000, "reason": "no"}) == [True]
    assert agent("deadLetter", [second], "never") == [True]
    state = python.find("a")
    assert state is not None
    assert (state.state, state.job.attempt) == ("delayed", 2)
    (dead,) = python.admin.dead()
    assert (dead.job.id, dead.reason, dead.worker) == ("b", "never", "w")
    assert python.admin.redrive() == 1


def test_attempts_end_in_whatever_language(agents: Agents, newest: Server) -> None:
    node = agents(newest, max_attempts=3)
    with Queue("q", url=newest.url, max_attempts=3) as queue:
        queue.enqueue(b"1", id="a")
        for attempt in (1, 3):
            (job,) = node("lease", "w", 10, {"ttl": 70_000})["jobs"]
            assert job["attempt"] == attempt
            assert node("retry", [job], {"reason": f"node {attempt}"}) == [True]
            lease = queue.lease()
            assert (lease is None) == (attempt == 3)
            assert lease is None or lease.retry(reason="python")
        assert [(state.reason, state.job.attempt) for state in queue.admin.dead()] == [
            ("node 3", 3)
        ]


def test_a_stale_holder_settles_nothing(agent: Agent, python: Queue) -> None:
    python.enqueue(b"1", id="a")
    (job,) = agent("lease", "w", 1, {"ttl": 70_000, "duration": 1})["jobs"]
    lease = python.lease(block=20)  # it looks for expired leases
    assert lease is not None
    assert lease.job.attempt == 2
    assert agent("renew", [job]) == [False]
    assert agent("release", [job]) == [False]
    assert agent("retry", [job]) == [False]
    assert agent("deadLetter", [job], "no") == [False]
    assert agent("complete", [job], {"fenced": True}) == [False]
    assert lease.renew()
    assert agent("complete", [job]) == [True]  # the first completer wins
    assert not lease.complete()


def test_a_renewed_lease_lasts(agents: Agents, newest: Server) -> None:
    node = agents(newest, lease=700)
    with Queue("q", url=newest.url, lease=0.7) as queue:
        queue.enqueue(b"1")
        (job,) = node("lease", "w", 1, {"ttl": 70_000})["jobs"]
        assert node("renew", [job], {"duration": 60_000}) == [True]
        sweeps = [run(queue, queue.ops.reclaim("v", 10.0)).moved for _ in range(3)]
        assert sum(sweeps) == 0
        assert node("renew", [job], {"duration": 1}) == [True]
        until(lambda: run(queue, queue.ops.reclaim("v", 10.0)).moved == 1)
        assert node("renew", [job]) == [False]


# -- the dead --------------------------------------------------------------------------------------


def test_python_takes_over_from_a_node_that_died(
    agent: Agent, newest: Server, python: Queue
) -> None:
    python.enqueue_many([NewJob(b"1", id="a"), NewJob(b"2", id="b")])
    assert agent("beat", "node.1", 1000, {"register": True})
    assert len(agent("lease", "node.1", 10)["jobs"]) == 2
    agent.crash()
    seen: list[tuple[str, int]] = []
    worker = Worker(url=newest.url, heartbeat=0.2, timeout=0.5)

    @worker.handler("q")
    def take(job: Job) -> None:
        seen.append((job.id, job.attempt))

    with worker:
        until(lambda: python.counts().completed == 2)
    assert sorted(seen) == [("a", 2), ("b", 2)]
    assert python.admin.workers() == []


def test_node_takes_over_from_a_python_that_died(agent: Agent, python: Queue) -> None:
    python.enqueue(b"1", id="a")
    assert run(python, python.ops.beat("python.1", 0.3, register=True))
    assert run(python, python.ops.lease("python.1", 1)).claims
    assert agent("beat", "node.1", 60_000, {"register": True})
    until(lambda: agent("reclaim", "node.1", 400)["declared"] == 1)
    (job,) = agent("lease", "node.1", 10)["jobs"]
    assert (job["id"], job["attempt"]) == ("a", 2)
    assert not run(python, python.ops.beat("python.1", 0.3)), "it learns that it was declared dead"
    assert run(python, python.ops.lease("python.1", 1)) is None


def test_a_node_that_was_declared_dead_learns_it(agent: Agent, python: Queue) -> None:
    assert agent("beat", "node.1", 1, {"register": True})
    assert run(python, python.ops.beat("python.1", 60, register=True))
    until(lambda: run(python, python.ops.reclaim("python.1", 0.3)).declared == 1)
    assert not agent("beat", "node.1", 60_000)
    assert agent("lease", "node.1", 10) is None
    assert agent("beat", "node.2", 60_000, {"register": True})
    assert agent("lease", "node.2", 10)["jobs"] == []


def test_what_a_blocked_read_brought_is_for_whoever_comes(agent: Agent, python: Queue) -> None:
    """The read belongs to no reader. One that dies on it costs the job no time and no attempt."""
    assert agent("lease", "w", 1, {"ttl": 70_000})["jobs"] == []
    agent.tell("waited", 60_000)
    until(
        lambda: (
            python._executor.connections.send([b"*2\r\n$6\r\nCLIENT\r\n$4\r\nLIST\r\n"])[0].find(
                b"cmd=xreadgroup"
            )
            > 0
        )
    )
    python.enqueue(b"1")
    agent.answer()
    assert python.counts().waiting == 1
    agent.crash()
    lease = python.lease()
    assert lease is not None
    assert lease.job.attempt == 1


def test_leaving_gives_everything_back(agent: Agent, python: Queue, admin: redis.Redis) -> None:
    python.enqueue_many([b"1", b"2"])
    assert agent("beat", "node.1", 60_000, {"register": True})
    assert len(agent("lease", "node.1", 10)["jobs"]) == 2
    agent("leave", "node.1")
    assert python.admin.workers() == []
    assert {row["name"] for row in admin.xinfo_consumers(PREFIX + "jobs", "workers")} == {"parked"}  # type: ignore[union-attr]
    assert [(lease.job.payload, lease.job.attempt) for lease in python.lease_many(2)] == [
        (b"1", 1),
        (b"2", 1),
    ]


# -- calls -----------------------------------------------------------------------------------------


@pytest.fixture
def proxy(newest: Server) -> Iterator[Proxy]:
    with Proxy(newest.path) as proxy:
        yield proxy


def load(admin: redis.Redis, *names: str) -> None:
    """Load the script, so that the lost reply is not the one about an unknown script."""
    for name in names:
        admin.script_load(script(name).source)


def test_a_call_whose_reply_was_lost_acts_once(
    agents: Agents, proxy: Proxy, python: Queue, admin: redis.Redis
) -> None:
    node = agents(port=proxy.port)
    load(admin, "enqueue", "lease", "complete", "release")
    node("beat", "w", 60_000, {"register": True})

    def cut(method: str, *args: Any) -> Any:
        proxy.cut("replies", 0)
        answer = node(method, *args)
        assert proxy.fired
        return answer

    receipts = cut("enqueue", ["1", "2"]) + cut("enqueue", [{"payload": "3", "id": "a"}])
    assert [receipt["added"] for receipt in receipts] == [True] * 3
    assert python.counts().waiting == 3
    jobs = cut("lease", "w", 2)["jobs"]
    assert [(job["payload"], job["attempt"]) for job in jobs] == [("1", 1), ("2", 1)]
    assert python.counts().leased == 2
    assert cut("release", jobs[:1]) == [True]
    assert cut("complete", jobs[1:]) == [True]
    counts = python.counts()
    assert (counts.waiting, counts.parked, counts.completed, counts.enqueued) == (1, 1, 1, 3)


def test_a_request_that_did_not_arrive_is_sent_again(
    agents: Agents, proxy: Proxy, python: Queue
) -> None:
    node = agents(port=proxy.port)
    node("enqueue", ["0"])
    for at in (0, 1, 50):
        proxy.cut("requests", at)
        node("enqueue", [f"after {at}"])
        assert proxy.fired
    assert [lease.job.payload for lease in python.lease_many(9)] == [
        b"0",
        b"after 0",
        b"after 1",
        b"after 50",
    ]


def test_what_cannot_heal_is_told_at_once(agent: Agent, admin: redis.Redis) -> None:
    admin.set(PREFIX + "jobs", "x")
    with pytest.raises(AssertionError, match="WRONGTYPE"):
        agent("enqueue", ["1"])


# -- a worker, and the pages that describe it ------------------------------------------------------


def test_the_worker_of_the_documentation(node: Node, newest: Server, admin: redis.Redis) -> None:
    with (
        Queue("emails", url=newest.url) as queue,
        Started(node.command("example.js", newest.path)) as process,
    ):
        queue.enqueue(b"ada@example.org", id="welcome-ada", headers={"language": "en"})
        queue.enqueue(b"bob@example.org", headers={"language": "de"}, delay=0.01)
        until(lambda: queue.counts().completed == 2)
        assert [worker.name.partition(".")[0] for worker in queue.admin.workers()] == ["node"]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        assert sorted(re.sub(r"^\w{24} ", "", line) for line in out.decode().splitlines()) == [
            "1 bob@example.org de",
            "welcome-ada 1 ada@example.org en",
        ]
        assert queue.admin.workers() == []
        keys = {
            key.removeprefix("headrace:{emails}:emails:").partition(":")[0]
            for key in admin.scan_iter()
        }
        assert keys == {"jobs", "wake", "stats", "lane"}
        assert admin.xlen("headrace:{emails}:emails:jobs") == 0


@pytest.mark.slow
def test_a_handler_that_throws_is_retried(node: Node, newest: Server, admin: redis.Redis) -> None:
    source = """
        import { readFileSync } from 'node:fs';
        import { connect, Queue, Worker } from './headrace.js';
        const redis = await connect({ path: process.argv[2] });
        const queue = new Queue(redis, JSON.parse(readFileSync('headrace.json')), 'q', { max_attempts: 3 });
        const worker = new Worker(queue, job => { throw new Error(`attempt ${job.attempt}`); }, { backoff: 1 });
        process.on('SIGTERM', () => worker.stop());
        await worker.run();
        await redis.close();
    """
    (node.folder / "throws.js").write_text(source)
    command = node.command("throws.js", newest.path)
    with Queue("q", url=newest.url) as queue, Started(command, cwd=node.folder) as process:
        queue.enqueue(b"1", id="a")
        admin.xadd(PREFIX + "jobs", {"text": "no payload"})
        until(lambda: queue.counts().dead == 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        reasons = sorted(state.reason or "" for state in queue.admin.dead())
        assert reasons == ["Error: attempt 3", "no payload: the entry has no field data"]
        assert queue.counts().lost == 0


def test_the_page_has_the_program_that_is_run() -> None:
    page = (HOW_TO / "consume-from-another-language.md").read_text("utf-8")
    (block,) = re.findall(r"^```js\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert block in (Path(__file__).parent / "example.js").read_text("utf-8")


def test_the_producers_page(node: Node, newest: Server, admin: redis.Redis, python: Queue) -> None:
    """The page's command lines are run word by word."""
    page = (HOW_TO / "produce-from-another-language.md").read_text("utf-8")
    lines = re.sub(r"\\\n", " ", page).replace(
        "'headrace:{emails}:emails'", "headrace:{emails}:emails"
    )
    added = re.findall(r"^redis-cli XADD (.*)$", lines, re.MULTILINE)
    assert admin.execute_command("XADD", *shlex.split(added[0]))
    (line,) = re.findall(r"^redis-cli --eval enqueue.lua (.*)$", lines, re.MULTILINE)
    words = shlex.split(line.replace("$Q", "headrace:{emails}:emails"))
    comma = words.index(",")
    reply = [
        admin.eval(script("enqueue").source, comma, *words[:comma], *words[comma + 1 :])
        for _ in range(2)
    ]
    assert reply == [["welcome-ada", 1], ["welcome-ada", 0]]
    (block,) = re.findall(r"^```js\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    example = (node.folder / "example.js").read_text("utf-8").partition("const emails")[0]
    (node.folder / "producer.js").write_text(
        f"{example}{block}console.log(id, added);\nawait redis.close();\n", "utf-8"
    )
    with Queue("emails", url=newest.url) as emails:
        assert node.run("producer.js", newest.path).split() == ["welcome-ada", "false"]
        jobs = [lease.job for lease in emails.lease_many(5)]
        assert [job.payload for job in jobs] == [b"ada@example.org"] * 2
        assert [dict(job.headers) for job in jobs] == [{"language": "en"}] * 2
        assert jobs[1].id == "welcome-ada"
