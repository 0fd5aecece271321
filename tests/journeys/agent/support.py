import os
import signal
from pathlib import Path

from headrace import AsyncQueue, AsyncWorker, Job
from headrace.pydantic_ai import HeadraceDurability, durable
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

tickets = AsyncQueue("tickets")  # its server is named by the environment: HEADRACE_URL
worker = AsyncWorker(heartbeat=0.5, timeout=2)


def note(*words: object) -> None:
    """Write a line of the ledger. End the process once after the line that the journey names."""
    line = " ".join(map(str, words))
    with Path("ledger.txt").open("a") as ledger:
        print(line, file=ledger)
    if line == os.environ.get("DIE_AFTER") and not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def think(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Play the language model. Look the order up, refund, and answer."""
    turn = len(messages) // 2
    note("model", turn)
    plan = [
        ToolCallPart("order_of", {"ticket": "17"}, "call-1"),
        ToolCallPart("refund", {"cents": 4200}, "call-2"),
    ]
    return ModelResponse([plan[turn] if turn < len(plan) else TextPart("4200 cents are refunded")])


async def ask(job: Job, signal: str, call: ToolCallPart) -> None:
    """Tell the team, once, which signal this call waits for."""
    note("ask", job.id, signal, call.args_as_json_str())


agent = Agent(FunctionModel(think), name="support", capabilities=[HeadraceDurability(ask=ask)])


@agent.tool_plain
def order_of(ticket: str) -> str:
    note("order_of", ticket)
    return f"order-{ticket}"


@agent.tool_plain(requires_approval=True)
def refund(cents: int) -> str:
    note("refund", cents)
    return "done"


@worker.handler(tickets)
async def support(job: Job) -> str:
    with durable(job):
        answer = await agent.run(job.payload.decode())
    return answer.output


if __name__ == "__main__":
    worker.run()
