"""A job whose handler runs agents, and models that follow a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field
from pydantic_ai import Agent, AgentRunResult, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from headrace import AsyncWorker, Job, Queue, Release, Retry, Worker
from headrace.pydantic_ai import HeadraceDurability, durable
from headrace.testing import run
from tests.support.servers import Server

Run = Callable[[Job], Any]  # makes the coroutine of a handler


@define(eq=False)
class Script:
    """A model that answers its requests in turn, and notes each. Its last answer stays."""

    answers: list[list[Any]]
    asked: list[str]

    def __call__(self, messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(one, ModelResponse) for one in messages)
        self.asked.append(f"model {turn}")
        return ModelResponse(self.answers[min(turn, len(self.answers) - 1)])


def call(tool: str, id: str | None = None, **args: Any) -> ToolCallPart:
    return ToolCallPart(tool, args, tool_call_id=id or f"{tool}-1")


def text(content: str) -> list[TextPart]:
    return [TextPart(content)]


def returned(result: AgentRunResult[Any]) -> dict[str, Any]:
    """Return what the tools gave to the model, by the ids of the calls."""
    parts = [part for message in result.all_messages() for part in message.parts]
    return {part.tool_call_id: part.content for part in parts if isinstance(part, ToolReturnPart)}


@define(eq=False)
class Stage:
    """A queue with one job, whose handler runs agents, under one kind of worker."""

    kind: str
    url: str
    queue: Queue[Any]
    asked: list[str] = field(factory=list[str])  # what has run outside the records, in order
    results: list[Any] = field(factory=list[Any])  # of the handler, one of each delivery

    def agent(self, *answers: list[Any], **options: Any) -> Agent[Any, Any]:
        model = FunctionModel(Script(list(answers), self.asked))
        durability = options.pop("durability", None) or HeadraceDurability[Any]()
        return Agent(model, name="support", capabilities=[durability], **options)

    def play(
        self, agents: Run, *, deliveries: int = 1, until_empty: bool = False, attempts: int = 1
    ) -> None:
        """Run the job until its worker has nothing to do. It is delivered so many times, and each
        time its steps are there."""
        worker: Any = (Worker if self.kind == "threads" else AsyncWorker)(self.url)

        def end(result: Any) -> None:
            self.results.append(result)
            if len(self.results) < deliveries:
                raise Release

        async def coroutine(job: Job) -> None:
            with durable(job):
                result = await agents(job)
            end(result)

        def plain(job: Job) -> None:
            with durable(job):
                result = asyncio.run(agents(job))
            end(result)

        worker.handler(self.queue.name, retry=Retry(attempts=attempts, wait=0))(
            coroutine if self.kind == "tasks" else plain
        )
        run(worker, self.url, until_empty=until_empty)

    def steps(self) -> list[tuple[str, str]]:
        found = self.queue.find("ticket")
        return [] if found is None else [(one.name, one.state) for one in found.steps]


@pytest.fixture
def stage(kind: str, newest: Server, queue: Queue[Any]) -> Stage:
    queue.enqueue(b"help", id="ticket")
    return Stage(kind, newest.url, queue)
