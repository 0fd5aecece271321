"""An agent in a job asks its model and calls its tools once, whatever becomes of its worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    BinaryContent,
    BinaryImage,
    FunctionToolset,
    ModelResponse,
    ModelRetry,
    RunContext,
    ToolFailed,
    ToolReturn,
    messages,
)
from pydantic_ai.capabilities import AbstractCapability, durable_operation
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import ModelMessage, ModelResponsePart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import DynamicToolset
from pydantic_ai.usage import RequestUsage

from headrace.errors import CodecError, ConfigurationError, InDoubt
from headrace.pydantic_ai import HeadraceDurability
from tests.agents.stage import Script, Stage, call, returned, text


def answers_of(result: Any) -> list[ModelResponse]:
    return [one for one in result.all_messages() if isinstance(one, ModelResponse)]


def test_outside_a_job_an_agent_runs_as_usual() -> None:
    asked: list[str] = []
    model = FunctionModel(Script([text("hello")], asked))
    agent = Agent(model, name="support", capabilities=[HeadraceDurability[Any]()])
    assert asyncio.run(agent.run("hi")).output == "hello"
    assert asyncio.run(agent.run("hi")).output == "hello"
    assert asked == ["model 0", "model 0"]


def test_a_later_delivery_asks_nobody(stage: Stage) -> None:
    agent = stage.agent(
        [call("order_of", "a", ticket="17"), call("order_of", "b", ticket="18")],
        [call("refund", cents=4200)],
        text("done"),
    )

    @agent.tool_plain
    def order_of(ticket: str) -> str:
        stage.asked.append(f"order of {ticket}")
        return f"order-{ticket}"

    @agent.tool_plain
    async def refund(cents: int) -> dict[str, int]:
        stage.asked.append(f"refund {cents}")
        return {"cents": cents}

    stage.play(lambda job: agent.run(job.payload.decode()), deliveries=3)
    assert sorted(stage.asked) == [
        "model 0", "model 1", "model 2", "order of 17", "order of 18", "refund 4200",
    ]  # fmt: skip
    assert len(stage.results) == 3
    for result in stage.results:
        assert result.output == "done"
        assert returned(result) == {"a": "order-17", "b": "order-18", "refund-1": {"cents": 4200}}
        assert result.usage == stage.results[0].usage
        assert answers_of(result) == answers_of(stage.results[0])
        assert result.run_id == stage.results[0].run_id


def test_steps_have_names_for_people(stage: Stage) -> None:
    agent = stage.agent([call("look", "c7")], text("done"))
    seen: list[tuple[str, str]] = []

    @agent.tool_plain
    def look() -> str:
        return "well"

    async def agents(_: Any) -> None:
        await agent.run("hi")
        seen.extend(await asyncio.to_thread(stage.steps))

    stage.play(agents)
    assert seen == [
        ("support model", "done"),
        ("support look c7", "done"),
        ("support model 2", "done"),
    ]


def one_of_each() -> list[Any]:
    """Return one part of each type that a model can answer with."""
    details = {"n": 1, "deep": [{"a": None}]}
    made: dict[str, Any] = {
        "text": messages.TextPart("héy \U0001f600", id="t", provider_details=details),
        "thinking": messages.ThinkingPart("hm", id="h", signature="s", provider_name="p"),
        "tool-call": call("look", "c1", deep={"x": [1, 2.5, None]}),
        "builtin-tool-call": messages.NativeToolCallPart("web", {"q": 1}, "n1", provider_name="p"),
        "builtin-tool-return": messages.NativeToolReturnPart("web", {"hits": [1]}, "n1"),
        "compaction": messages.CompactionPart("short", id="k", provider_name="p"),
        "file": messages.FilePart(BinaryImage(b"\x00\xff\x89PNG", media_type="image/png")),
    }
    for tagged in get_args(get_args(ModelResponsePart)[0]):
        kind, tag = get_args(tagged)
        if tag.tag in made:
            assert isinstance(made[tag.tag], kind), tag
        elif tag.tag == "speech":
            made[tag.tag] = kind(speaker="assistant", transcript="hello")
        else:  # parts of pydantic-ai's own tools, which are calls and returns of certain names
            assert issubclass(kind, (messages.BaseToolCallPart, messages.BaseToolReturnPart)), tag
    return list(made.values())


def test_all_parts_of_an_answer_come_back(stage: Stage) -> None:
    parts = one_of_each()
    whole = ModelResponse(
        [one for one in parts if one.part_kind != "tool-call"],
        usage=RequestUsage(input_tokens=7, output_tokens=3, details={"x": 2}),
        model_name="m",
        provider_name="p",
        provider_details={"finish": [1]},
        provider_response_id="r1",
        finish_reason="stop",
        metadata={"k": "v"},
    )

    def answer(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        stage.asked.append("model")
        return whole

    agent = Agent(FunctionModel(answer), name="a", capabilities=[HeadraceDurability[Any]()])
    stage.play(lambda _: agent.run("hi"), deliveries=2)
    assert stage.asked == ["model"]
    first, second = (answers_of(result)[0] for result in stage.results)
    assert first == second
    assert list(second.parts) == list(whole.parts)
    assert (second.usage.details, second.finish_reason) == ({"x": 2}, "stop")
    assert second.timestamp == whole.timestamp


class Order(BaseModel):
    id: str
    at: datetime


@dataclass
class Point:
    x: int


AT = datetime(2026, 11, 29, tzinfo=UTC)
VALUES: dict[str, tuple[Any, Any]] = {
    "text": ("héy", "héy"),
    "nothing": (None, None),
    "numbers": ([1, 2.5, True], [1, 2.5, True]),
    "mapping": ({"a": {"b": [None]}}, {"a": {"b": [None]}}),
    "model": (Order(id="o", at=AT), {"id": "o", "at": "2026-11-29T00:00:00Z"}),
    "dataclass": (Point(3), {"x": 3}),
    "moment": (AT, "2026-11-29T00:00:00Z"),
    "image": (BinaryContent(b"\x89PNG\xff", media_type="image/png"), None),
    "enriched": (ToolReturn("short", content="long", metadata={"k": 1}), "short"),
}


@pytest.mark.parametrize("kind", ["tasks"])
@pytest.mark.parametrize("name", VALUES)
def test_values_of_tools_come_back(stage: Stage, name: str) -> None:
    value, shown = VALUES[name]
    agent = stage.agent([call("look")], text("done"))

    @agent.tool_plain
    def look() -> Any:
        stage.asked.append("look")
        return value

    stage.play(lambda _: agent.run("hi"), deliveries=2)
    assert stage.asked == ["model 0", "look", "model 1"]
    first, second = stage.results
    content = returned(second)["look-1"]
    assert content == returned(first)["look-1"]
    if name == "image":
        assert (content.data, content.media_type) == (value.data, value.media_type)
    else:
        assert content == shown


def test_what_a_tool_asks_of_its_model_is_recorded(stage: Stage) -> None:
    agent = stage.agent(
        [call("retry", "r1"), call("fail", "f1")], [call("retry", "r2")], text("done"), retries=3
    )

    @agent.tool_plain
    def retry() -> str:
        stage.asked.append("retry")
        if stage.asked.count("retry") == 1:
            raise ModelRetry("once more")
        return "well"

    @agent.tool_plain
    def fail() -> str:
        stage.asked.append("fail")
        raise ToolFailed("no shop")

    stage.play(lambda _: agent.run("hi"), deliveries=2)
    assert sorted(stage.asked) == ["fail", "model 0", "model 1", "model 2", "retry", "retry"]
    for result in stage.results:
        assert returned(result)["r2"] == "well"
        assert "no shop" in str(returned(result)["f1"])
        assert result.output == "done"


def test_an_exception_of_a_tool_is_not_recorded(stage: Stage) -> None:
    agent = stage.agent([call("good")], [call("bad")], text("done"))

    @agent.tool_plain
    def good() -> str:
        stage.asked.append("good")
        return "well"

    @agent.tool_plain
    def bad() -> str:
        stage.asked.append("bad")
        if stage.asked.count("bad") == 1:
            raise RuntimeError("the shop is closed")
        return "open"

    with pytest.raises(RuntimeError, match="the shop is closed"):
        stage.play(lambda _: agent.run("hi"), attempts=9)
    stage.play(lambda _: agent.run("hi"), attempts=9)
    assert stage.asked == ["model 0", "good", "model 1", "bad", "bad", "model 2"]
    assert stage.results[0].output == "done"


def test_an_exception_of_a_model_is_not_recorded(stage: Stage) -> None:
    script = Script([[call("look")], text("done")], stage.asked)

    def answer(told: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if stage.asked == ["model 0", "look"]:
            stage.asked.append("broken")
            raise ModelHTTPError(503, "m")
        return script(told, info)

    agent = Agent(FunctionModel(answer), name="a", capabilities=[HeadraceDurability[Any]()])

    @agent.tool_plain
    def look() -> str:
        stage.asked.append("look")
        return "well"

    with pytest.raises(ModelHTTPError):
        stage.play(lambda _: agent.run("hi"), attempts=9)
    stage.play(lambda _: agent.run("hi"), attempts=9)
    assert stage.asked == ["model 0", "look", "broken", "model 1"]
    assert stage.results[0].output == "done"


def test_a_tool_that_runs_once(stage: Stage) -> None:
    agent = stage.agent([call("pay")], text("done"))

    @agent.tool_plain(metadata={"headrace": {"once": True}})
    def pay() -> str:
        stage.asked.append("pay")
        raise RuntimeError("no answer of the bank")

    with pytest.raises(RuntimeError, match="no answer of the bank"):
        stage.play(lambda _: agent.run("hi"), attempts=2)
    with suppress(InDoubt):
        stage.play(lambda _: agent.run("hi"), attempts=2)
    assert stage.queue.counts().dead == 1
    assert stage.asked == ["model 0", "pay"]


def test_agents_in_tools(stage: Stage) -> None:
    """The run of an agent in a tool is a part of its step, unless the tool is none."""
    helper = Agent(
        FunctionModel(Script([[call("look")], text("found")], stage.asked)),
        name="helper",
        capabilities=[HeadraceDurability[Any]()],
    )

    @helper.tool_plain
    def look() -> str:
        stage.asked.append("look")
        return "well"

    agent = stage.agent([call("inside", "i"), call("outside", "o")], text("done"))

    @agent.tool
    async def inside(ctx: RunContext[Any]) -> str:
        return (await helper.run("hi", usage=ctx.usage)).output

    @agent.tool(metadata={"headrace": False})
    async def outside(ctx: RunContext[Any]) -> str:
        return (await helper.run("hi", usage=ctx.usage)).output

    seen: list[Any] = []

    async def agents(_: Any) -> Any:
        result = await agent.run("hi")
        seen.extend(name for name, _ in await asyncio.to_thread(stage.steps))
        return result

    stage.play(agents, deliveries=2)
    assert sorted(stage.asked) == ["look", "look", *3 * ["model 0"], *3 * ["model 1"]]
    assert set(seen) == {
        "support model", "support inside i", "helper model", "helper look look-1", "helper model 2",
        "support model 2",
    }  # fmt: skip
    for result in stage.results:
        assert returned(result) == {"i": "found", "o": "found"}


def test_several_runs_in_a_job(stage: Stage) -> None:
    """Each run has its own records, also side by side."""

    def answer(told: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        prompt = str(told[0].parts[-1].content)  # type: ignore[union-attr]
        stage.asked.append(prompt)
        return ModelResponse(text(f"{prompt}!"))

    agent = Agent(FunctionModel(answer), name="a", capabilities=[HeadraceDurability[Any]()])

    async def agents(_: Any) -> list[str]:
        first = await agent.run("one")
        others = await asyncio.gather(*(agent.run(one) for one in ("two", "three")))
        return [first.output, *(other.output for other in others)]

    stage.play(agents, deliveries=2)
    assert sorted(stage.asked) == ["one", "three", "two"]
    assert stage.results == 2 * [["one!", "two!", "three!"]]


def test_a_conversation_goes_on(stage: Stage) -> None:
    agent = stage.agent(text("hello"), text("again"))

    async def agents(_: Any) -> Any:
        first = await agent.run("one")
        return await agent.run("two", message_history=first.all_messages())

    stage.play(agents, deliveries=2)
    assert stage.asked == ["model 0", "model 1"]
    first, second = stage.results
    assert first.output == second.output == "again"
    assert len(second.new_messages()) == len(first.new_messages()) == 2


def test_the_same_id_for_two_calls(stage: Stage) -> None:
    """Some providers number the calls of each answer from the beginning."""
    agent = stage.agent([call("look", "0", n=1)], [call("look", "0", n=2)], text("done"))

    @agent.tool_plain
    def look(n: int) -> int:
        stage.asked.append(f"look {n}")
        return n

    stage.play(lambda _: agent.run("hi"), deliveries=2)
    assert stage.asked == ["model 0", "look 1", "model 1", "look 2", "model 2"]
    assert [returned(result) for result in stage.results] == [{"0": 2}, {"0": 2}]


def test_ids_of_thousands_of_characters(stage: Stage) -> None:
    ids = ["c" * 3000 + end for end in "ab"]
    agent = stage.agent([call("look", one, n=n) for n, one in enumerate(ids)], text("done"))

    @agent.tool_plain
    def look(n: int) -> int:
        stage.asked.append(f"look {n}")
        return n

    stage.play(lambda _: agent.run("hi"), deliveries=2)
    assert sorted(stage.asked) == ["look 0", "look 1", "model 0", "model 1"]
    assert [returned(result) for result in stage.results] == 2 * [{ids[0]: 0, ids[1]: 1}]


def test_a_dynamic_toolset(stage: Stage) -> None:
    def tools(_: RunContext[Any]) -> FunctionToolset[Any]:
        stage.asked.append("tools")
        made = FunctionToolset[Any](id="made")

        @made.tool_plain
        def look() -> str:
            stage.asked.append("look")
            return "well"

        return made

    agent = stage.agent(
        [call("look")], text("done"), toolsets=[DynamicToolset[Any](tools, id="dynamic")]
    )
    stage.play(lambda _: agent.run("hi"), deliveries=1)
    once = list(stage.asked)
    assert once.count("look") == 1
    stage.queue.enqueue(b"help", id="ticket")
    stage.asked.clear()
    stage.results.clear()
    stage.play(lambda _: agent.run("hi"), deliveries=2)
    assert stage.asked == once


def test_operations_of_capabilities(stage: Stage) -> None:
    class Recorder(AbstractCapability[Any]):
        id = "recorder"

        async def before_run(self, ctx: RunContext[Any]) -> None:
            stage.results.append(await self.count(ctx, 2))
            stage.results.pop()

        @durable_operation("count")
        async def count(self, ctx: RunContext[Any], number: int) -> int:
            stage.asked.append("count")
            return number + 1

    agent = Agent(
        FunctionModel(Script([text("done")], stage.asked)),
        name="a",
        capabilities=[Recorder(), HeadraceDurability[Any]()],
    )
    stage.play(lambda _: agent.run("hi"), deliveries=2)
    assert stage.asked == ["count", "model 0"]


def test_a_choice_of_models(stage: Stage) -> None:
    cheap = FunctionModel(Script([text("cheap")], stage.asked), model_name="cheap")
    agent = stage.agent(text("dear"), durability=HeadraceDurability[Any](models={"cheap": cheap}))

    async def agents(_: Any) -> list[str]:
        return [(await agent.run("hi")).output, (await agent.run("hi", model="cheap")).output]

    stage.play(agents, deliveries=2)
    assert stage.results == 2 * [["dear", "cheap"]]
    assert stage.asked == ["model 0", "model 0"]


def test_structured_output_of_the_test_model(stage: Stage) -> None:
    agent = Agent(
        TestModel(), name="a", output_type=Point, capabilities=[HeadraceDurability[Any]()]
    )

    @agent.tool_plain
    def look(word: str) -> str:
        stage.asked.append(word)
        return word

    stage.play(lambda _: agent.run("hi"), deliveries=2)
    assert stage.asked == ["a"]
    first, second = stage.results
    assert isinstance(second.output, Point)
    assert first.output == second.output


@pytest.mark.parametrize("how", ["run_stream", "handler"])
def test_streams_are_refused(stage: Stage, how: str) -> None:
    async def stream(_: list[ModelMessage], __: AgentInfo) -> Any:
        stage.asked.append("model")
        yield "hello"

    async def handler(_: Any, events: Any) -> None:
        async for _event in events:
            pass

    agent = Agent(
        FunctionModel(stream_function=stream), name="a", capabilities=[HeadraceDurability[Any]()]
    )

    async def agents(_: Any) -> Any:
        if how == "handler":
            return await agent.run("hi", event_stream_handler=handler)
        async with agent.run_stream("hi") as result:
            return await result.get_output()

    with pytest.raises(ConfigurationError, match="can't stream within durable"):
        stage.play(agents)
    assert stage.asked == []


def test_tools_of_one_run_are_refused(stage: Stage) -> None:
    agent = stage.agent(text("done"))
    late = FunctionToolset[Any](id="late")
    late.add_function(lambda: "x", takes_ctx=False, name="late")
    with pytest.raises(UserError, match="headrace"):
        stage.play(lambda _: agent.run("hi", toolsets=[late]))
    assert stage.asked == []


def test_an_agent_without_a_name_is_refused() -> None:
    with pytest.raises(UserError, match="unique `name`"):
        Agent(TestModel(), capabilities=[HeadraceDurability[Any]()])


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ("x" * 70_000, ValueError, "65,536 can be recorded"),
        (object(), CodecError, "a value of an agent is no JSON"),
    ],
)
def test_values_that_can_not_be_recorded(
    stage: Stage, value: Any, error: type[Exception], words: str
) -> None:
    agent = stage.agent([call("look")], text("done"))

    @agent.tool_plain
    def look() -> Any:
        return value

    with pytest.raises(error, match=words):
        stage.play(lambda _: agent.run("hi"))


def test_metadata_that_says_nothing(stage: Stage) -> None:
    agent = stage.agent([call("look")], text("done"))

    @agent.tool_plain(metadata={"headrace": {"twice": True}})
    def look() -> str:
        return "well"

    with pytest.raises(ConfigurationError, match="tool 'look': give its metadata headrace=False"):
        stage.play(lambda _: agent.run("hi"))


def test_without_the_extra() -> None:
    code = "import sys; sys.modules['pydantic_ai'] = None; import headrace.pydantic_ai"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "headrace.pydantic_ai is an extra: python -m pip install" in done.stderr
