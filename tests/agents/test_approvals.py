"""A call that needs approval waits for a signal, and its job needs no worker meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import CallDeferred, ToolCallPart
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.tools import RunContext

from headrace import Counts, Job
from headrace.pydantic_ai import HeadraceDurability
from tests.agents.stage import Stage, call, returned, text

APPROVE = "support approve refund refund-1"


def refunding(stage: Stage, *first: Any, **options: Any) -> Any:
    """Return an agent that looks up an order, asks for approval, and refunds."""
    agent = stage.agent(
        [call("order_of")],
        [*first, call("refund", cents=4200)],
        text("done"),
        durability=HeadraceDurability[Any](**options),
    )

    @agent.tool_plain
    def order_of() -> str:
        stage.asked.append("order_of")
        return "order-17"

    @agent.tool_plain(requires_approval=True)
    def refund(cents: int) -> str:
        stage.asked.append(f"refund {cents}")
        return f"{cents} refunded"

    return agent


@pytest.mark.parametrize(
    ("data", "refunds", "told"),
    [
        (None, ["refund 4200"], "4200 refunded"),
        (True, ["refund 4200"], "4200 refunded"),
        ({"kind": "tool-approved", "override_args": {"cents": 1}}, ["refund 1"], "1 refunded"),
        (False, [], "The tool call was denied."),
        ("too much", [], "too much"),
        ({"kind": "tool-denied", "message": "no"}, [], "no"),
        ({"approved": True}, [], "{'approved': True}"),  # is not understood, so it is no approval
        (1, [], "1"),
    ],
)
def test_an_approval_is_a_signal(stage: Stage, data: Any, refunds: list[str], told: str) -> None:
    agent = refunding(stage)
    stage.play(lambda _: agent.run("hi"))
    before = ["model 0", "order_of", "model 1"]
    assert stage.asked == before
    assert stage.queue.counts() == Counts(enqueued=1, blocked=1)
    assert stage.steps()[-1] == (APPROVE, "waiting")
    assert stage.queue.signal("ticket", APPROVE, data, by="ben") == "woke"
    stage.play(lambda _: agent.run("hi"), deliveries=2)
    assert stage.asked == [*before, *refunds, "model 2"]
    for result in stage.results:
        assert returned(result)["refund-1"] == told
        assert result.output == "done"


def test_somebody_is_asked_once(stage: Stage) -> None:
    told: list[Any] = []

    def ask(job: Job, signal: str, asked: ToolCallPart) -> None:
        told.append((job.id, signal, asked.tool_name, asked.args_as_dict()))

    async def ask_later(job: Job, signal: str, asked: ToolCallPart) -> None:
        await asyncio.sleep(0)
        ask(job, signal, asked)

    agent = refunding(stage, ask=ask_later if stage.kind == "tasks" else ask)
    stage.play(lambda _: agent.run("hi"))
    assert stage.queue.signal("ticket", APPROVE, True) == "woke"
    stage.play(lambda _: agent.run("hi"), deliveries=2)
    assert told == [("ticket", APPROVE, "refund", {"cents": 4200})]


def test_nobody_answers_in_time(stage: Stage) -> None:
    agent = refunding(stage, timeout=0.05)
    stage.play(lambda _: agent.run("hi"), until_empty=True)
    (result,) = stage.results
    assert returned(result)["refund-1"] == f"no signal {APPROVE!r} has come in time"
    assert stage.asked == ["model 0", "order_of", "model 1", "model 2"]


def test_several_approvals_side_by_side(stage: Stage) -> None:
    agent = refunding(stage, call("refund", "other", cents=1))
    stage.play(lambda _: agent.run("hi"))
    assert [state for _, state in stage.steps()[-2:]] == ["waiting", "waiting"]
    assert stage.queue.signal("ticket", APPROVE, True) == "woke"
    stage.play(lambda _: agent.run("hi"))  # the other one waits still
    assert stage.asked == ["model 0", "order_of", "model 1"]
    assert stage.queue.signal("ticket", "support approve refund other", "no") == "woke"
    stage.play(lambda _: agent.run("hi"), deliveries=2)
    assert stage.asked == ["model 0", "order_of", "model 1", "refund 4200", "model 2"]
    for result in stage.results:
        assert returned(result)["other"] == "no"


def test_a_tool_that_asks_for_approval_by_itself(stage: Stage) -> None:
    agent = stage.agent([call("refund", cents=9)], text("done"))

    @agent.tool
    def refund(ctx: RunContext[Any], cents: int) -> str:
        stage.asked.append(f"refund {cents} {ctx.tool_call_approved}")
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return "refunded"

    stage.play(lambda _: agent.run("hi"))
    assert stage.queue.signal("ticket", APPROVE, True) == "woke"
    stage.play(lambda _: agent.run("hi"), deliveries=2)
    assert stage.asked == ["model 0", "refund 9 False", "refund 9 True", "model 1"]
    for result in stage.results:
        assert returned(result)["refund-1"] == "refunded"


@pytest.mark.parametrize("in_time", [True, False])
def test_a_result_from_elsewhere(stage: Stage, in_time: bool) -> None:
    agent = stage.agent(
        [call("render")],
        text("done"),
        durability=HeadraceDurability[Any](timeout=None if in_time else 0.05),
    )

    @agent.tool_plain
    def render() -> str:
        stage.asked.append("render")
        raise CallDeferred

    if in_time:
        stage.play(lambda _: agent.run("hi"))
        assert stage.queue.signal("ticket", "support answer render render-1", {"page": 3}) == "woke"
    stage.play(lambda _: agent.run("hi"), until_empty=True)
    assert stage.asked == ["model 0", "render", "model 1"]
    told = returned(stage.results[0])["render-1"]
    assert told == {"page": 3} if in_time else "has come in time" in str(told)
