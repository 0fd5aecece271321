"""Stages of flows that run in child processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import AsyncFlow, Flow, JobFailed, Retry
from headrace.codecs import Encrypted, JSONCodec
from headrace.errors import ConfigurationError
from headrace.isolation import Isolation
from tests.isolation import stages
from tests.isolation.test_isolated import ONE, Work, work
from tests.support.awaiting import PATIENCE, until
from tests.support.servers import Server

__all__ = ["work"]
TWICE = Retry(attempts=2, wait=0)


@contextmanager
def shop(work: Work, **functions: Any) -> Iterator[Flow]:
    """Run a flow whose stages are isolated. *functions* are in the place of the usual handlers."""
    handlers = {
        "pick": stages.pick,
        "pack": stages.pack,
        "bill": stages.bill,
        "send": stages.send,
        **functions,
    }
    kind: Any = AsyncFlow if work.kind == "tasks" else Flow
    served = kind("shop", url=work.url)
    leads: dict[str, dict[str, Any]] = {
        "pick": {"next": "bill", "children": "pack"},
        "bill": {"next": "send", "children": "pack"},
    }
    for name, function in handlers.items():
        served.stage(name, isolate=ONE, retry=TWICE, **leads.get(name, {}))(function)
    running = work.running()
    running.worker.flow(served)
    with running, Flow("shop", url=work.url) as flow:
        for name in handlers:
            flow.stage(name, **leads.get(name, {}))
        yield flow


def begun(flow: Flow, payload: bytes, failed: str = "fail") -> str:
    return flow.start(payload, attributes={"customer": "ada", "failed": failed}).id


def test_a_run_passes_through_isolated_stages(work: Work) -> None:
    """A child that dies is tried again, and its parent is joined once all children are done."""
    with shop(work) as flow:
        name = begun(flow, b"first second third")
        told = flow.result(name, timeout=PATIENCE).decode()
        state = flow.state(name)
    assert state is not None
    assert (state.results["pick"], state.failed) == (b"3", ())
    customer, *rows = told.replace(": ", "; ", 1).split("; ")
    assert customer == "ada"
    assert [row.split(" in ")[0] for row in rows] == [
        "first: first of 3",
        "second: second of 3",
        "third: third of 3",
    ]
    pids = {int(row.split(" in ")[1].split()[0]) for row in rows} | {int(told.rpartition(" ")[2])}
    assert os.getpid() not in pids


@pytest.mark.slow
def test_coroutines_are_stages(server: Server) -> None:
    with shop(Work("tasks", server.url), pack=stages.pack_async) as flow:
        assert b"one of 1" in flow.result(begun(flow, b"one"), timeout=PATIENCE)


def test_a_stage_whose_child_process_dies(work: Work) -> None:
    """The job of a stage fails with its child process, and the join says so, or goes on."""
    with shop(work) as flow:
        failing = begun(flow, b"dies second")
        with pytest.raises(JobFailed, match=r"1 of 2 children failed.*Killed: exit status 3"):
            flow.result(failing, timeout=PATIENCE)
        going_on = begun(flow, b"dies second", "continue")
        told = flow.result(going_on, timeout=PATIENCE).decode()
        state = flow.state(f"{going_on}/1/dies")
    assert told.startswith("ada: second: second of 2 in ")
    assert "; dies: failed " in told
    assert state is not None
    assert state.reason == "Killed: exit status 3"


REFUSED = {
    "bytes": "TypeError: FanOut: children must be an iterable of payloads",
    "conditional": "ValueError: unique_for, if_exists: for enqueue and enqueue_many only",
    "endless": "FanOut: 1001 jobs",
    "object": "TypeError: ",
    "far": "ConfigurationError: job of queue 'shop/pack': its task is for another server",
    "elsewhere": "ValueError: Next: flow 'shop' has no stage 'nowhere'",
}


@pytest.mark.slow
def test_what_a_stage_may_not_return_fails_its_job(work: Work) -> None:
    reasons: dict[str, str | None] = {}
    with shop(work, bill=stages.splits) as flow:
        names = {word: flow.start(word.encode(), stage="bill").id for word in REFUSED}
        for word, name in names.items():
            until(lambda name=name: (state := flow.state(name)) and state.state == "failed")
            state = flow.state(name)
            assert state is not None
            reasons[word] = state.reason
    for word, words in REFUSED.items():
        assert words in (reasons[word] or ""), reasons


@pytest.mark.slow
def test_a_result_that_can_not_be_encoded_is_dropped(work: Work) -> None:
    with shop(work, bill=stages.splits, send=stages.ends) as flow:
        name = flow.start(b"unencoded", stage="bill").id
        until(lambda: (state := flow.state(name)) is not None and state.state == "completed")
        state = flow.state(name)
    assert state is not None
    assert state.results.get("bill") is None


def test_children_and_results_travel_by_the_codec(work: Work) -> None:
    codec = Encrypted(JSONCodec(), {"k": b"0" * 32})
    kind: Any = AsyncFlow if work.kind == "tasks" else Flow
    flows = [one("sums", url=work.url, codec=codec) for one in (kind, Flow)]
    running = work.running()
    for flow in flows:
        flow.stage("pick", next="add", children="double", isolate=ONE)(stages.shares)
        flow.stage("double", isolate=ONE)(stages.doubles)
        flow.stage("add", isolate=ONE)(stages.adds)
    running.worker.flow(flows[0])
    with running, flows[1] as flow:
        name = flow.start({"numbers": [1, 2, 3]}).id
        assert flow.result(name, timeout=PATIENCE) == 12


def test_work_isolates_stages(work: Work) -> None:
    """`headrace work --isolate` has all handlers of a worker in children. A concurrency that was
    given is kept.
    """
    running = work.running()
    flow = Flow("shop", url=work.url)
    flow.stage("send")(stages.send)
    flow.stage("pick", isolate=ONE)(stages.pick)
    running.worker.flow(flow)
    running.worker.handler("q", concurrency=running.worker._slots)(stages.send)
    limits = Isolation(processes=1, recycle_jobs=9)
    running.worker._isolate(limits)
    found = {
        name: (one.isolation, one.concurrency) for name, one in running.worker.handlers.items()
    }
    assert found == {
        "shop/send": (limits, 1),
        "shop/pick": (ONE, 1),
        "q": (limits, running.worker._slots),
    }
    flow.close()


def test_bad_settings_of_a_stage_are_refused(work: Work, tmp_path: Path) -> None:
    flow = Flow("shop", url=work.url)
    with pytest.raises(TypeError, match="isolate must be True or an Isolation"):
        flow.stage("pick", isolate="yes")  # type: ignore[arg-type]

    def local(job: Any) -> None: ...

    flow.stage("send", isolate=ONE)(local)
    running = work.running()
    running.worker.flow(flow)
    with pytest.raises(ConfigurationError, match="define it at the top of its module"), running:
        pass
    flow.close()
