"""A worker process with an agent, which dies where its job says: a program of `test_killed.py`."""

from __future__ import annotations

import asyncio
import os
import signal
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from headrace import AsyncWorker, Job, Worker
from headrace.pydantic_ai import HeadraceDurability, durable

QUEUE = "tickets"
EFFECTS = ["model-0", "order_of", "model-1", "stock", "stock", "model-2", "refund", "model-3"]
ANSWERS: list[Any] = [
    [ToolCallPart("order_of", {}, "c0")],
    # side by side
    [ToolCallPart("stock", {}, "c1"), ToolCallPart("stock", {}, "c2")],
    [ToolCallPart("refund", {}, "c3")],
    [TextPart("refunded")],
]
APPROVE = "support approve refund c3"


def work(kind: str, url: str, folder: Path) -> None:
    """Run a worker. Its agents write each effect into the ledger of their job.

    A job's payload is `NUMBER WHEN`. The process dies once, before or after it writes the effect
    of this number.
    """
    running: ContextVar[Job] = ContextVar("running")

    def act(effect: str) -> str:
        job = running.get()
        number, when = job.payload.decode().split()
        ledger, died = folder / job.id, folder / f"{job.id}.died"
        lines = ledger.read_text().split() if ledger.exists() else []
        dies = len(lines) == int(number) and not died.exists()
        if dies and when == "before":
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with ledger.open("a") as file:
            file.write(f"{effect}\n")
        if dies:
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return effect

    def think(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(one, ModelResponse) for one in messages)
        act(f"model-{turn}")
        return ModelResponse(ANSWERS[turn])

    agent = Agent(FunctionModel(think), name="support", capabilities=[HeadraceDurability[Any]()])

    @agent.tool_plain
    def order_of() -> str:
        return act("order_of")

    @agent.tool_plain
    async def stock() -> str:
        return act("stock")

    @agent.tool_plain(requires_approval=True)
    def refund() -> str:
        return act("refund")

    worker: Any = (Worker if kind == "threads" else AsyncWorker)(url, heartbeat=1, timeout=10)

    async def coroutine(job: Job) -> str:
        running.set(job)
        with durable(job):
            return (await agent.run("refund my order")).output

    def plain(job: Job) -> str:
        running.set(job)
        with durable(job):
            return asyncio.run(agent.run("refund my order")).output

    worker.handler(QUEUE, concurrency=1)(plain if kind == "threads" else coroutine)
    worker.run()
