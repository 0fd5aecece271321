"""Agents of pydantic-ai in durable steps. Extra `pydantic-ai`. See docs/how-to/run-an-agent.md.

agent = Agent("openai:gpt-5", name="support", capabilities=[HeadraceDurability()])

@worker.handler(tickets)
async def support(job: Job) -> str:
    with durable(job):
        return (await agent.run(job.payload.decode())).output
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from datetime import timedelta
from functools import partial
from hashlib import sha256
from inspect import isawaitable
from typing import Any, ClassVar

from attrs import define, evolve, field

from headrace import Job
from headrace.errors import CodecError, ConfigurationError, requiring
from headrace.platform import LIMITS

with requiring("headrace.pydantic_ai", "pydantic-ai", "pydantic_ai"):
    from pydantic import StrictBool, TypeAdapter, ValidationError
    from pydantic_ai import (
        AgentRunResult,
        RunContext,
        ToolCallPart,
        ToolDenied,
        ToolFailed,
        durable_exec as engine,
        tools,
    )
    from pydantic_ai.capabilities import WrapRunHandler
    from pydantic_ai.models import Model

__all__ = ["Ask", "HeadraceDurability", "durable"]

Ask = Callable[[Job[Any], str, ToolCallPart], Awaitable[None] | None]
"""Tells people that a call waits. It takes the job, the name of the signal, and the call."""
_DECISION: TypeAdapter[Any] = TypeAdapter(StrictBool | tools.DeferredToolApprovalResult)


# A run of an agent. `durable` makes one without a name, of which the others are made.
@define(eq=False)
class _Run:
    job: Job[Any]
    pool: ThreadPoolExecutor | None  # takes the steps of a handler that is no coroutine
    name: str = ""
    runs: Counter[str] = field(factory=Counter[str])
    taken: set[str] = field(factory=set[str])

    def of(self, agent: str) -> _Run:
        self.runs[agent] += 1
        number = self.runs[agent]
        return evolve(self, name=agent if number == 1 else f"{agent}-{number}")

    def free(self, base: str) -> str:
        # the second step of a name gets a number; some gateways make ids of thousands of characters
        if len(base) > LIMITS.name_characters - 10:
            base = f"{base[:120]} {sha256(base.encode()).hexdigest()}"
        name, number = base, 1
        while name in self.taken:
            number += 1
            name = f"{base} {number}"
        self.taken.add(name)
        return name

    async def step(self, name: str, body: Callable[[], Awaitable[Any]], *, once: bool) -> Any:
        loop, executed = asyncio.get_running_loop(), False

        async def alone() -> Any:
            token = _RUN.set(None)  # an agent that runs within a step takes none
            try:
                return await body()
            finally:
                _RUN.reset(token)

        def function() -> Any:
            nonlocal executed
            executed = True
            if self.pool is None:
                return alone()
            return asyncio.run_coroutine_threadsafe(alone(), loop).result()

        try:
            answer = await self.take(partial(self.job.step, name, function, once=once))
        except BaseException:
            self.taken.discard(name)  # nothing was recorded: another model may answer here
            raise
        engine.record_durable_unit(executed=executed)
        return answer

    async def take(self, call: Callable[[], Any]) -> Any:
        if self.pool is None:
            return await call()
        loop = asyncio.get_running_loop()
        thread = loop.run_in_executor(self.pool, copy_context().run, call)
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:  # a thread can't be stopped, and needs this loop to end
            await asyncio.gather(thread, return_exceptions=True)
            raise


_RUN: ContextVar[_Run | None] = ContextVar("headrace_agent_run", default=None)


@contextmanager
def durable(job: Job[Any]) -> Generator[None, None, None]:
    """Let agents with `HeadraceDurability` that run within take their steps from *job*.

    An async handler awaits `agent.run(…)` within. A plain one calls `asyncio.run(agent.run(…))`.
    While a call waits for approval, `RunSuspended` leaves the handler. Each request to a model
    and each call of a tool costs a `job.step`.
    """
    try:
        asyncio.get_running_loop()
        pool = None
    except RuntimeError:
        pool = ThreadPoolExecutor(thread_name_prefix="headrace-agent")
    token = _RUN.set(_Run(job, pool))
    try:
        yield
    finally:
        _RUN.reset(token)
        if pool is not None:
            pool.shutdown()


# An operation of an agent, as a step. A call is known by its id, which its model made.
class _Step:
    def __init__(self, operation: engine.DurableOperation[Any, Any, Any]) -> None:
        self.operation = operation

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        async def body() -> object:
            with engine.durable_unit_scope():
                return codec.dump(await self.operation.handler(params))

        run, codec = _RUN.get(), self.operation.result_codec
        assert run is not None  # noqa: S101 - the base asks only within `durable`
        match self.operation.operation_id:
            case engine.ModelRequestId(streaming=True):
                raise ConfigurationError(
                    "an agent can't stream within durable(job), as an answer of its model is recorded as a whole: "
                    "await agent.run(…), without an event_stream_handler"
                )
            case engine.ModelRequestId():
                name = "model"
            case engine.ToolsetCallToolId() | engine.ToolsetValidateToolArgumentsId():
                name = f"{params.name} {params.ctx.tool_call_id}"
            case other:
                name = engine.JournalOperationNamer("").operation_name(other).strip("_")
        name = run.free(f"{run.name} {name}")
        return codec.load(await run.step(name, body, once=config is True))


class _Backend(engine.DurableOperationBackend[Any]):
    def bind(self, operation: engine.DurableOperation[Any, Any, Any]) -> Any:
        return _Step(operation)

    def config_for_tool(self, operation: object, *, tool: Any, tool_name: str) -> Any:
        # true stands for `once`, and false for a tool that is no step
        metadata: dict[str, Any] = (tool and tool.tool_def.metadata) or {}
        asked = metadata.get("headrace")
        if asked not in (None, False, {"once": True}):
            said = "give its metadata headrace=False or headrace={'once': True}"
            raise ConfigurationError(f"tool {tool_name!r}: {said}, not {asked!r}")
        return asked and True

    def registrations(self) -> tuple[()]:
        return ()


class HeadraceDurability(engine.BaseDurabilityCapability[tools.AgentDepsT]):
    """Lets an agent take its steps from the job of `durable`. Elsewhere it does nothing.

    *models* are models that a run may choose by name. The names of the steps begin with *name*, by
    default the agent's. A call that waits for approval, or for its result, waits for the signal
    `<name> approve <tool> <id>`, or `… answer …`. Before, *ask* is called in a step. After
    *timeout* the call is denied. A tool with `metadata={"headrace": {"once": True}}` is a step
    with `once`. With `False` it is none, and agents that it runs take steps of their own.
    """

    engine_spec: ClassVar[engine.DurabilityEngineSpec] = engine.DurabilityEngineSpec(
        engine_name="headrace",
        durable_unit_noun="step",
        durable_container_noun="job",
        codec=engine.JSON_CODEC,
        serialization_failure=lambda error: CodecError(f"a value of an agent is no JSON: {error}"),
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key="headrace",
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        name: str | None = None,
        ask: Ask | None = None,
        timeout: timedelta | float | None = None,
    ) -> None:
        super().__init__(models=models, name=name)
        self._ask, self._timeout = ask, timeout

    @property
    def in_durable_context(self) -> bool:
        return _RUN.get() is not None

    def get_durable_operation_backend(self) -> _Backend:
        return _Backend()

    def get_default_run_id(self) -> str | None:
        if (run := _RUN.get()) is None:
            return None
        run.runs[""] += 1
        return f"{run.job.queue}/{run.job.id}/{run.job.enqueued_at:.3f}/{run.runs['']}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return engine.conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def wrap_run(
        self, ctx: RunContext[tools.AgentDepsT], *, handler: WrapRunHandler
    ) -> AgentRunResult[Any]:
        if (run := _RUN.get()) is None:
            return await handler()
        token = _RUN.set(run.of(self.name))
        try:
            with engine.replay_scope():
                return await super().wrap_run(ctx, handler=handler)
        finally:
            _RUN.reset(token)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[tools.AgentDepsT], *, requests: tools.DeferredToolRequests
    ) -> tools.DeferredToolResults | None:
        if (run := _RUN.get()) is None:
            return None
        found = tools.DeferredToolResults()

        async def wait(what: str, call: ToolCallPart, answers: dict[str, Any], late: Any) -> None:
            signal = run.free(f"{run.name} {what} {call.tool_name} {call.tool_call_id}")
            if self._ask is not None:
                tell = partial(_awaited, self._ask, run.job, signal, call)
                await run.step(run.free(f"ask {signal}"), tell, once=False)
            try:
                data = await run.take(partial(run.job.wait_for, signal, self._timeout))
            except TimeoutError as error:
                data = late(str(error))
            answers[call.tool_call_id] = data

        approvals = [wait("approve", one, found.approvals, str) for one in requests.approvals]
        calls = [wait("answer", one, found.calls, ToolFailed) for one in requests.calls]
        await asyncio.gather(*approvals, *calls)
        found.approvals = {one: _decision(data) for one, data in found.approvals.items()}
        return found


def _decision(data: Any) -> Any:
    try:
        return _DECISION.validate_python(data is None or data)
    except ValidationError:
        return ToolDenied(str(data))  # a text says why


async def _awaited(function: Callable[..., Any], *args: Any) -> None:
    done = function(*args)
    if isawaitable(done):
        await done
