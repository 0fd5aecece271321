import os
import signal
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from headrace import AsyncQueue, AsyncWorker, Job
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

tickets = AsyncQueue("tickets")  # its server is named by the environment: HEADRACE_URL
worker = AsyncWorker(heartbeat=0.5, timeout=2)
running: ContextVar[Job] = ContextVar("running")


def note(*words: object) -> None:
    """Write a line of the ledger. End the process once after the line that the journey names."""
    line = " ".join(map(str, words))
    with Path("ledger.txt").open("a") as ledger:
        print(line, file=ledger)
    if line == os.environ.get("DIE_AFTER") and not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


class DurableModel(WrapperModel):
    """A model whose requests are steps. A later delivery gets the recorded answer."""

    async def request(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async def ask() -> list[Any]:
            answer = await super(DurableModel, self).request(messages, settings, parameters)
            return ModelMessagesTypeAdapter.dump_python([answer], mode="json")

        recorded = await running.get().step(f"model-{len(messages)}", ask)
        (answer,) = ModelMessagesTypeAdapter.validate_python(recorded)
        assert isinstance(answer, ModelResponse)
        return answer


def think(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Play the language model. Look the order up, ask for approval, refund, and answer."""
    turn = len(messages) // 2
    note("model", turn)
    plan = [
        ToolCallPart("order_of", {"ticket": "17"}),
        ToolCallPart("approval", {"cents": 4200}),
        ToolCallPart("refund", {"cents": 4200}),
    ]
    return ModelResponse([plan[turn] if turn < len(plan) else TextPart("4200 cents are refunded")])


agent = Agent(DurableModel(FunctionModel(think)))


async def step(context: RunContext, function: Callable[..., Any], *arguments: object) -> Any:
    """Run a tool's function as a step of the job, under the id of the call."""
    return await running.get().step(f"{context.tool_name}-{context.run_step}", function, *arguments)


@agent.tool
async def order_of(context: RunContext, ticket: str) -> str:
    def look_up() -> str:
        note("order_of", ticket)
        return f"order-{ticket}"

    return await step(context, look_up)


@agent.tool_plain
async def approval(cents: int) -> str:
    answer = await running.get().wait_for("approval", timeout=60)
    return f"{answer['by']} approves {cents}"


@agent.tool
async def refund(context: RunContext, cents: int) -> str:
    def pay() -> str:
        note("refund", cents)
        return "done"

    return await step(context, pay)


@worker.handler(tickets)
async def support(job: Job) -> str:
    running.set(job)
    answer = await agent.run(job.payload.decode())
    return answer.output


if __name__ == "__main__":
    worker.run()
