"""Flows under workers of every kind. The tests check the handlers' arguments, verdicts and
failures."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import (
    AsyncWorker,
    ConfigurationError,
    DeadLetter,
    FanOut,
    Flow,
    FlowJob,
    FlowState,
    NewJob,
    Next,
    Queue,
    Retry,
    RetryLater,
    Worker,
)
from tests.support.awaiting import PATIENCE, until
from tests.support.engines import Running
from tests.support.processes import CONTEXT
from tests.support.servers import Server

BaseWorker = dict[str, Callable[[FlowJob], Any]]


class Shop:
    """The flow `shop`, and a worker that serves it."""

    def __init__(self, running: Running, url: str) -> None:
        self.running, self.url = running, url
        self.flow = Flow("shop", url=url, lookup=["customer"])
        self.seen: list[tuple[str, FlowJob]] = []

    def serve(self, stage: str, body: Callable[[FlowJob], Any], **options: Any) -> None:
        def noted(job: FlowJob) -> Any:
            self.seen.append((stage, job))
            return body(job)

        self.flow.stage(stage, **options)(self.running._adapt(noted))

    def state(self, name: str) -> FlowState:
        state = self.flow.state(name)
        assert state is not None
        return state

    def stages(self, name: str) -> list[str]:
        """Return the stages where a run has been."""
        return [stage for stage, job in self.seen if job.id == name]

    def empty(self) -> bool:
        """Tell whether every queue is empty. No job may be missing."""
        counts = self.flow.counts().values()
        assert not any(count.lost for count in counts)
        return not any(count.present for count in counts)


@pytest.fixture
def shop(work: Callable[..., Running], newest: Server) -> Iterator[Shop]:
    made = Shop(work(heartbeat=0.2, timeout=2.0), newest.url)
    yield made
    made.flow.close()


def test_a_flow_from_start_to_end(shop: Shop) -> None:
    def pick(job: FlowJob) -> Any:
        return FanOut([NewJob(b"a", id="a"), NewJob(b"b", id="b")], result=b"picked")

    def pack(job: FlowJob) -> Any:
        assert job.results == {"pick": b"picked"}
        return job.payload.upper()

    def bill(job: FlowJob) -> Any:
        assert job.children == {"a": b"A", "b": b"B"}
        assert job.failed == ()
        return Next("send")

    def send(job: FlowJob) -> Any:
        assert (job.payload, job.attributes, job.results) == (
            b"order",
            {"customer": "ada"},
            {"pick": b"picked"},
        )
        return b"sent to " + str(job.attributes["customer"]).encode()

    shop.serve("pick", pick, next="bill", children="pack")
    shop.serve("pack", pack)
    shop.serve("bill", bill, next=["pick", "send"])
    shop.serve("send", send)
    shop.running.worker.flow(shop.flow)
    with shop.running:
        names = [shop.flow.start(b"order", attributes={"customer": "ada"}).id for _ in range(20)]
        assert [shop.flow.result(name, timeout=PATIENCE) for name in names] == [b"sent to ada"] * 20
    assert {name: shop.stages(name) for name in names} == {
        name: ["pick", "bill", "send"] for name in names
    }
    assert all(shop.stages(f"{name}/1/a") == ["pack"] for name in names)
    assert shop.empty()


def test_a_result_that_cannot_be_kept_stops_no_run(shop: Shop) -> None:
    """The stage is done and does not run again. Later stages lack its result."""

    def pick(job: FlowJob) -> Any:
        return FanOut([NewJob(b"a", id="a")], result={"no": "bytes"})

    def pack(job: FlowJob) -> Any:
        return 42

    def send(job: FlowJob) -> Any:
        return f"{dict(job.results)} {dict(job.children)}"

    shop.serve("pick", pick, next="send", children="pack")
    shop.serve("pack", pack)
    shop.serve("send", send)
    shop.running.worker.flow(shop.flow)
    with shop.running:
        name = shop.flow.start(b"order").id
        assert shop.flow.result(name, timeout=PATIENCE) == b"{} {'a': None}"
    assert shop.stages(name) == ["pick", "send"]
    assert shop.stages(f"{name}/1/a") == ["pack"]


def test_failures_are_retried_and_then_dead(shop: Shop) -> None:
    """A stage has its own `Retry`. The tests also raise a verdict and redrive a dead letter."""
    broken = threading.Event()
    broken.set()

    def pick(job: FlowJob) -> Any:
        if shop.stages(job.id) == ["pick"]:
            raise RetryLater(0.01)
        return job.payload

    def bill(job: FlowJob) -> Any:
        if broken.is_set():
            raise RuntimeError("broken")
        return b"billed"

    shop.serve("pick", pick, next="bill")
    shop.serve("bill", bill, retry=Retry(attempts=3, wait=0.01))
    shop.running.worker.flow(shop.flow)
    with shop.running, Queue("shop/bill", url=shop.url) as queue:
        name = shop.flow.start(b"order").id
        until(lambda: shop.state(name).state == "failed", "a failed run")
        assert shop.stages(name).count("bill") == 3
        broken.clear()
        assert queue.admin.redrive() == 1
        assert shop.flow.result(name, timeout=PATIENCE) == b"billed"
        until(lambda: shop.state(name).state == "completed")
    assert shop.empty()


def test_a_dead_child_is_seen_to_by_the_worker(shop: Shop) -> None:
    """The run goes on at once, without a call by a client."""

    def pack(job: FlowJob) -> Any:
        raise DeadLetter("never")

    shop.serve(
        "pick", lambda _: FanOut([b"a", b"b"], failed="continue"), next="bill", children="pack"
    )
    shop.serve("pack", pack)
    shop.serve("bill", lambda job: ",".join(job.failed).encode())
    shop.running.worker.flow(shop.flow)
    with shop.running:
        name = shop.flow.start(b"order").id
        until(lambda: "bill" in shop.stages(name), "the join")
        assert shop.flow.result(name, timeout=PATIENCE) == b"0,1"


def test_a_cancelled_child_is_seen_to_by_the_worker(shop: Shop) -> None:
    """The worker that keeps the flow finds the cancelled child, and the run goes on."""
    shop.serve(
        "pick",
        lambda _: FanOut([NewJob(b"a", delay=3600)], failed="continue"),
        next="bill",
        children="pack",
    )
    shop.serve("pack", lambda _: None)
    shop.serve("bill", lambda _: b"billed")
    shop.running.worker.flow(shop.flow)
    with shop.running, Queue("shop/pack", url=shop.url) as queue:
        name = shop.flow.start(b"order").id
        until(lambda: queue.counts().delayed == 1)
        assert queue.cancel(f"{name}/1/0")
        until(lambda: shop.stages(name) == ["pick", "bill"], "the join")


def test_a_wrong_outcome_is_a_failure(shop: Shop) -> None:
    shop.serve("pick", lambda job: Next("nowhere"), retry=Retry(attempts=1))
    shop.running.worker.flow(shop.flow)
    with shop.running, Queue("shop/pick", url=shop.url) as queue:
        shop.flow.start(b"next")
        until(lambda: queue.counts().dead == 1)
        (letter,) = queue.admin.dead()
    assert "no stage 'nowhere'" in (letter.reason or "")


def test_a_stage_has_a_deadline(shop: Shop) -> None:
    def pick(job: FlowJob) -> Iterator[float]:
        while not job.lost:
            yield 0.01

    shop.serve("pick", pick, deadline=0.2, retry=Retry(attempts=1))
    shop.running.worker.flow(shop.flow)
    with shop.running:
        name = shop.flow.start(b"order").id
        until(lambda: shop.state(name).state == "failed")


def test_plain_jobs_of_a_stage_s_queue_are_handled(shop: Shop) -> None:
    shop.serve("pick", lambda job: job.payload, next="bill")
    shop.serve("bill", lambda _: None)
    shop.running.worker.flow(shop.flow, "pick")
    with shop.running, Queue("shop/pick", url=shop.url) as queue:
        receipt = queue.enqueue(b"plain")
        assert queue.result(receipt.id, timeout=PATIENCE) == b"plain"
        name = shop.flow.start(b"order").id
        until(lambda: shop.state(name).stage == "bill")
    assert shop.flow.counts()["bill"].waiting == 1  # this worker serves only `pick`
    job = shop.seen[0][1]
    assert (job.attributes, job.results, job.children) == ({}, {}, {})


def test_a_wrong_registration_is_refused(newest: Server) -> None:
    with Flow("shop", url=newest.url) as flow:
        for worker in (Worker(url=newest.url), AsyncWorker(url=newest.url)):
            with pytest.raises(TypeError, match="flow must be"):
                worker.flow("shop")  # type: ignore[arg-type]
            with pytest.raises(ConfigurationError, match="no stages"):
                worker.flow(flow)
        flow.stage("pick")
        with pytest.raises(ConfigurationError, match="no handlers"):
            worker.flow(flow)
        for name in ("pick", "bill"):
            with pytest.raises(ConfigurationError, match="no handler for"):
                worker.flow(flow, name)
        with pytest.raises(ValueError, match="lease"):
            flow.stage("bill", lease=0)
        flow.stage("bill", retry=5)(print)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="retry"):
            worker.flow(flow)
        flow.stage("send")(lambda _: None)
        worker.flow(flow, "send")
        with pytest.raises(ConfigurationError, match="handler already"):
            worker.flow(flow, "shop/send")
        with pytest.raises(ConfigurationError, match="namespace"):
            Worker(url=newest.url, namespace="other").flow(flow, "send")


# -- killed ----------------------------------------------------------------------------------------

CHILDREN = 30


def build(url: str) -> Flow:
    """Make a flow whose run fans out, with each child twice."""
    flow = Flow("shop", url=url)
    first = flow.stage("pick", next="bill", children="half")
    first(lambda _: FanOut([b"%d" % i for i in range(CHILDREN)]))
    flow.stage("half", next="sum", children="pack")(lambda job: FanOut([job.payload] * 2))
    flow.stage("pack")(lambda job: job.payload)
    flow.stage("sum")(lambda job: b"%d" % sum(int(one or b"0") for one in job.children.values()))
    flow.stage("bill")(lambda job: b"%d" % sum(int(one or b"0") for one in job.children.values()))
    return flow


def serve(url: str) -> None:
    worker = Worker(url=url, heartbeat=0.1, timeout=0.5)
    worker.flow(build(url))
    worker.run()


@pytest.mark.slow
def test_workers_that_are_killed_in_the_middle_change_nothing(newest: Server) -> None:
    running = []
    with build(newest.url) as flow:
        names = [flow.start(b"order").id for _ in range(3)]
        try:
            for least in (5, 100, 200, None):
                process = CONTEXT.Process(target=serve, args=(newest.url,), daemon=True)
                process.start()
                running.append(process)
                if least is not None:
                    until(
                        lambda least=least: (
                            sum(c.completed for c in flow.counts().values()) >= least
                        )
                    )
                    os.kill(process.pid or 0, signal.SIGKILL)
                    process.join(PATIENCE)
            expected = b"%d" % (2 * sum(range(CHILDREN)))
            assert [flow.result(name, timeout=2 * PATIENCE) for name in names] == [expected] * 3
            counts = flow.counts()
        finally:
            for process in running:
                process.kill()
                process.join(PATIENCE)
    ended = {
        name: (count.enqueued, count.completed, count.lost, count.present)
        for name, count in counts.items()
    }
    number = 3 * CHILDREN
    assert ended == {
        "pick": (3, 3, 0, 0), "half": (number, number, 0, 0), "pack": (2 * number, 2 * number, 0, 0),
        "sum": (number, number, 0, 0), "bill": (3, 3, 0, 0),
    }  # fmt: skip
