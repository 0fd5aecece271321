"""Features of Python's client that the client in JavaScript lacks. It refuses such queues and
jobs."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Flow, Limit, Queue, Rate, Worker
from headrace._protocol import view_ops
from headrace.codecs import Compressed
from tests.interop.conftest import Agent, Agents, Node
from tests.support.awaiting import until
from tests.support.program import PATIENCE, Started
from tests.support.servers import Server

WORKERS = {
    "ordered=True": {"ordered": True},
    "priorities=": {"priorities": 3},
    "rate=": {"rate": Rate(5, 60)},
    "fair= or limits=": {"fair": "tenant"},
    "fair= or limits= ": {"limits": Limit(1, key="tenant")},
    "a codec around another": {"codec": Compressed()},
}
PRODUCERS = {
    "max_waiting=": {"max_waiting": 5},
    "unique_for=": {"unique_for": 60},
    "a codec around another": {"codec": Compressed()},
}


def declare(server: Server, **options: Any) -> None:
    """Let a worker in Python declare the options of `q`, and leave."""
    worker = Worker(url=server.url)
    worker.handler("q", **options)(print)
    with worker, Queue("q", url=server.url) as queue:
        declared(queue)


def declared(queue: Queue) -> None:
    """Wait until the server has the declaration, because a producer's first job goes out before
    it."""
    until(lambda: queue._executor.run(view_ops.about(queue.ops)).declared)


@pytest.mark.parametrize("what", WORKERS)
def test_a_worker_takes_no_job_of_such_a_queue(
    agent: Agent, newest: Server, python: Queue, what: str
) -> None:
    declare(newest, **WORKERS[what])
    python.enqueue(b"1", key="k")
    with pytest.raises(
        AssertionError, match=f"NotKept: queue q has {what.strip()}.*: use a worker in Python"
    ):
        agent("lease", "w", 1, {"ttl": 70_000})
    assert (python.counts().waiting, python.counts().leased) == (1, 0)


@pytest.mark.parametrize(
    "terms", [{"fair": "tenant"}, {"limits": Limit(1, key="tenant")}], ids=["fair", "limits"]
)
def test_terms_between_two_checks_are_not_kept(
    agent: Agent, python: Queue, terms: dict[str, Any]
) -> None:
    """The server knows them already."""
    assert agent("lease", "w", 1, {"ttl": 70_000})["jobs"] == []
    agent("trust", "worker")
    python.admin.redeclare(**terms)
    python.enqueue(b"1", headers={"tenant": "a"})
    with pytest.raises(
        AssertionError, match=r"NotKept: queue q has fair= or limits=.*: use a worker in Python"
    ):
        agent("lease", "w", 1, {"ttl": 70_000})
    assert (python.counts().waiting, python.counts().leased) == (1, 0)


@pytest.mark.parametrize("what", PRODUCERS)
def test_a_producer_adds_nothing_to_such_a_queue(
    agent: Agent, newest: Server, python: Queue, what: str
) -> None:
    with Queue("q", url=newest.url, **PRODUCERS[what]) as queue:
        queue.enqueue(b"1")
        declared(queue)
    with pytest.raises(
        AssertionError, match=f"NotKept: queue q has {what}.*: use a producer in Python"
    ):
        agent("enqueue", ["2"])
    assert python.counts().waiting == 1


def test_neither_serves_shards(agent: Agent, newest: Server) -> None:
    """A job of a sharded queue has other keys, so a job that was added here would be invisible."""
    with Queue("q", url=newest.url, shards=2) as queue:
        queue.enqueue(b"1")
        for call in (["enqueue", ["2"]], ["lease", "w", 1, {"ttl": 70_000}]):
            with pytest.raises(AssertionError, match="NotKept: queue q has shards="):
                agent(*call)
        assert queue.counts().waiting == 1


def test_a_job_with_steps_goes_back(agent: Agent, python: Queue) -> None:
    """A handler without steps would do all of them again."""
    charges: list[str] = []
    python.enqueue(b"x", id="a")
    lease = python.lease()
    lease.job.step("charge", lambda: charges.append("a"))
    lease.release()
    with pytest.raises(AssertionError, match="NotKept: job a has steps"):
        agent("lease", "w", 1, {"ttl": 70_000})
    again = python.lease()
    again.job.step("charge", lambda: charges.append("a"))
    assert (again.job.attempt, charges) == (1, ["a"])


def test_a_result_of_node_is_none(agent: Agent, python: Queue) -> None:
    receipt = python.enqueue(b"x", id="a")
    assert agent("complete", agent("lease", "w", 1, {"ttl": 70_000})["jobs"]) == [True]
    assert receipt.result(timeout=5) is None


def test_a_job_whose_id_stays_taken_goes_back(agent: Agent, python: Queue) -> None:
    python.enqueue(b"x", id="a", unique_for=60)
    with pytest.raises(AssertionError, match="NotKept: job a has unique_for="):
        agent("lease", "w", 1, {"ttl": 70_000})
    assert python.lease().complete()
    assert not python.enqueue(b"x", id="a", unique_for=60).added


def test_a_job_of_a_flow_goes_back(agents: Agents, newest: Server) -> None:
    """A plain completion would not keep its result or choose its next stage."""
    with Flow("shop", url=newest.url) as flow:

        @flow.stage("pick")
        def pick(job: Any) -> bytes:
            return b"picked"

        flow.start(b"x", id="a")
        node = agents(newest, "shop/pick")
        with pytest.raises(AssertionError, match="NotKept: job a has a stage of a flow"):
            node("lease", "w", 1, {"ttl": 70_000})
        worker = Worker(url=newest.url)
        worker.flow(flow)
        with worker:
            until(lambda: flow.result("a") == b"picked")


def test_calls_refuse_what_only_python_has(agent: Agent, python: Queue) -> None:
    for job in ({"priority": 1}, {"key": "k"}, {"if_exists": "replace"}, {"then": []}):
        with pytest.raises(
            AssertionError, match=rf"NotKept: enqueue: this client has no {next(iter(job))}"
        ):
            agent("enqueue", ["fine", {"payload": "x", **job}])
    with pytest.raises(AssertionError, match=r"TypeError: payload object: give a string"):
        agent("enqueue", [{"payload": {"to": "ada"}}])
    with pytest.raises(AssertionError, match="NotKept: lease: this client has no ordered"):
        agent("lease", "w", 1, {"ttl": 70_000, "ordered": True})
    with pytest.raises(AssertionError, match="NotKept: complete: this client has no result"):
        agent("complete", [], {"result": "x"})
    assert python.counts().enqueued == 0


def test_the_attempts_are_those_of_the_queue(agent: Agent, newest: Server, python: Queue) -> None:
    declare(newest, max_attempts=2)
    python.enqueue(b"x", id="a")
    for _ in range(2):
        (job,) = agent("lease", "w", 1, {"ttl": 70_000})["jobs"]
        assert agent("retry", [job], {"reason": "again"}) == [True]
    assert [state.job.id for state in python.admin.dead()] == ["a"]


WORKER = """
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect, Queue, Worker } from './headrace.js';
const redis = await connect({ path: process.argv[2] });
const queue = new Queue(redis, JSON.parse(readFileSync('headrace.json')), 'q');
if (process.argv[3] === 'trusting') queue.checked.worker = Infinity; // so only the server tells it
const marks = new Queue(redis, JSON.parse(readFileSync('headrace.json')), 'marks');
const worker = new Worker(queue, async job => {
  await marks.enqueue([`begins ${job.payload}`]);
  await sleep(Number(job.headers.ms));
}, { heartbeat: 200, timeout: 1000 });
try {
  await worker.run();
} catch (error) {
  console.log(`${error.name}: ${error.message}`);
}
await redis.close();
"""


@pytest.mark.parametrize(
    ("how", "what"),
    [("checking", "ordered=True"), ("checking", "fair="), ("trusting", "fair=")],
    ids=["ordered", "fair", "fair-between-checks"],
)
def test_a_running_worker_finishes_and_leaves(
    node: Node, newest: Server, python: Queue, how: str, what: str
) -> None:
    """The queue gets a feature that the client refuses. The running job completes, and no other
    begins."""
    (node.folder / "leaves.js").write_text(WORKER)
    with Queue("marks", url=newest.url) as marks:
        command = node.command("leaves.js", newest.path, how)
        with Started(command, cwd=node.folder) as process:
            python.enqueue(b"1", headers={"ms": "3000"})
            until(lambda: marks.counts().waiting == 1)
            if what == "ordered=True":
                declare(newest, ordered=True)
            else:
                python.admin.redeclare(fair="tenant")
            python.enqueue(b"2", headers={"ms": "0"}, key="k")
            out, err = process.communicate(timeout=PATIENCE)
        assert out.decode().startswith(f"NotKept: queue q has {what}"), err
        assert marks.counts().waiting == 1
        counts = python.counts()
        assert (counts.completed, counts.waiting + counts.parked, counts.leased, counts.lost) == (
            1,
            1,
            0,
            0,
        )
        assert python.admin.workers() == []
