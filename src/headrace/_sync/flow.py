"""`Flow` and `AsyncFlow`, side by side: jobs that pass through several queues of one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import redis
import redis.asyncio

from headrace import _flow_feed as calls
from headrace import _settings as checked
from headrace._calls import Call
from headrace._codec import Codec
from headrace._control import AsyncSender, Sender
from headrace._embedded import EmbeddedServer
from headrace._execute import AsyncExecutor, Executor, server
from headrace._face import Delay, Handle
from headrace._flow_ops import Staged
from headrace._job import Claim, Counts, Receipt
from headrace._observe import Sending, Settling, wanted
from headrace._op import Op
from headrace._outcome import FlowState
from headrace._tracing import Place


class _Shared(Staged):
    """What both colours do alike."""

    _embedded: EmbeddedServer | None = None
    _settings: Mapping[str, Any]

    def _address(self, url: str | None, client: object, wanted: type) -> str | None:
        found = server(url, client, wanted, self)
        if found is not None and found.startswith("embedded:"):
            self._embedded = EmbeddedServer.join(found.removeprefix("embedded:") or ".")
            found = f"unix://{self._embedded.path}"
        return found

    def _left(self) -> None:
        if self._embedded is not None:
            self._embedded.leave()
            self._embedded = None

    def _start(
        self, payload: Any, id: str | None, attributes: Any, stage: str | None, delay: Delay,
        headers: Mapping[str, str] | None,
    ) -> tuple[Op[Receipt], Sending | None]:  # fmt: skip
        place = Place(f"{self.name}/{self.ops.first(stage)}", self._settings)
        sending = Sending(place, headers=headers) if wanted() else None
        context = None if sending is None else sending.context
        return self.ops.start(payload, id, attributes, stage, delay, headers, context), sending

    def _complete(self, lease: object, outcome: Any, fenced: bool | None) -> tuple[Op[list[bool]], Settling | None]:
        if not isinstance(lease, Handle):
            raise TypeError(f"lease must be what lease() or lease_many() gave, not {type(lease).__name__}")
        claim: Claim = lease.claim
        place = Place(claim.job.queue, self._settings, claim.worker)
        settling = Settling(place, "complete", [claim.job]) if wanted() else None
        move = self.ops.move(claim, outcome, None if settling is None else settling.headers)
        fence = self.ops.settings.fenced if fenced is None else fenced
        if move is not None:
            return self.ops.advance([move], claim.worker if fence else ""), settling
        ops = self.ops.stages[claim.job.queue.partition("/")[2]].ops
        results = {} if outcome is None else {claim.entry: ops.result_bytes(outcome)}
        return ops.complete([claim], fenced=fence, results=results), settling

    def _result(self, id: str, timeout: float | timedelta | None) -> Call[bytes | None]:
        return calls.result(self.ops, id, None if timeout is None else checked.seconds("timeout", timeout))


class Flow(_Shared, Sender):
    """Stages that a job passes through, in queues of one group: `orders/validate`, `orders/charge`, …

    - *name*: the group's, 1-200 letters, digits, `.`, `_`, `-`.
    - *url* or *client*, *namespace*, *codec*: as for `Queue`.
    - *lookup*: the attributes by which `find` looks runs up.
    - *result_ttl*: seconds that a run's state is kept after its end. *dead_limit*, *fenced*: as for `Queue`.

    Declare the stages with `stage`, serve them with `worker.flow(flow)`. All programs of a flow declare the same.
    """

    def __init__(
        self, name: str, *, url: str | None = None, client: redis.Redis | None = None, namespace: str = "headrace",
        codec: Codec | None = None, lookup: Sequence[str] = (), dead_limit: int = 1000,
        result_ttl: float | timedelta = 86400, fenced: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(name, namespace, codec, lookup, dead_limit, result_ttl, fenced)
        self._executor = Executor(self._address(url, client, redis.Redis), client)
        self._settings = self._executor.pool.connection_kwargs

    def start(
        self, payload: Any, *, id: str | None = None, attributes: Mapping[str, str | Sequence[str]] | None = None,
        stage: str | None = None, delay: Delay = None, headers: Mapping[str, str] | None = None,
    ) -> Receipt:  # fmt: skip
        """Begin a run with *payload* in the first stage, or in *stage*. With *id* (no `/`), one that goes on already is
        left as it is: `added=False`. *attributes*: text, or lists of it, which every stage sees. flow_start.lua, O(1).
        """
        return self._run(*self._start(payload, id, attributes, stage, delay, headers))

    def complete(self, lease: Handle[Any], outcome: Any = None, fenced: bool | None = None) -> bool:
        """Complete a stage's job that you leased yourself, with a result, `Next` or `FanOut`: what a worker does.

        `True` for exactly one caller. The job is in its next stage, or its children are there, in the same script.
        `False` also if the flow would go to a stage that is not declared here. flow_advance.lua, O(children).
        """
        return self._run(*self._complete(lease, outcome, fenced))[0]

    def state(self, id: str) -> FlowState | None:
        """What is known of a run, or of a child by its id (`<parent>/<fan-out>/<name>`); `None`: nothing, or not any
        more. Sees to what happened outside of the flow first. flow_read.lua, O(children).
        """
        return self._drive(calls.state(self.ops, id))

    def find(self, **attributes: str) -> list[FlowState]:
        """The runs that go on and have all of these attributes. flow_find.lua per 1,000, flow_read.lua per 100."""
        return self._drive(calls.find(self.ops, attributes))

    def result(self, id: str, timeout: float | timedelta | None = None) -> bytes | None:
        """The result of the run's last stage, waiting up to *timeout* seconds for it; `None` if there is nothing, or
        the run failed or was cancelled.
        """
        return self._drive(self._result(id, timeout))

    def cancel(self, id: str) -> bool:
        """Cancel a run with all its children, wherever they are; a child with its own. Holders find their leases lost.
        `False`: it has ended, or never was. flow_advance.lua, per 100 children.
        """
        return self._drive(calls.cancel(self.ops, id))

    def counts(self) -> dict[str, Counts]:
        """The counts of each stage's queue, one after the other. counts.lua."""
        return self._drive(calls.counts(self.ops))

    def mermaid(self, counts: bool = False) -> str:
        """The declaration as a Mermaid flowchart; with *counts*, what is in each stage now."""
        return self._drive(calls.drawing(self.ops, counts))

    def close(self) -> None:
        """Close what we opened, nothing else."""
        self._executor.close()
        self._left()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


class AsyncFlow(_Shared, AsyncSender):
    """Like `Flow`, for asyncio; *client* is a `redis.asyncio.Redis`. For one event loop."""

    def __init__(
        self, name: str, *, url: str | None = None, client: redis.asyncio.Redis | None = None,
        namespace: str = "headrace", codec: Codec | None = None, lookup: Sequence[str] = (), dead_limit: int = 1000,
        result_ttl: float | timedelta = 86400, fenced: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(name, namespace, codec, lookup, dead_limit, result_ttl, fenced)
        self._executor = AsyncExecutor(self._address(url, client, redis.asyncio.Redis), client)
        self._settings = self._executor.pool.connection_kwargs

    async def start(
        self, payload: Any, *, id: str | None = None, attributes: Mapping[str, str | Sequence[str]] | None = None,
        stage: str | None = None, delay: Delay = None, headers: Mapping[str, str] | None = None,
    ) -> Receipt:  # fmt: skip
        """Like `Flow.start`."""
        return await self._run(*self._start(payload, id, attributes, stage, delay, headers))

    async def complete(self, lease: Handle[Any], outcome: Any = None, fenced: bool | None = None) -> bool:
        """Like `Flow.complete`."""
        return (await self._run(*self._complete(lease, outcome, fenced)))[0]

    async def state(self, id: str) -> FlowState | None:
        """Like `Flow.state`."""
        return await self._drive(calls.state(self.ops, id))

    async def find(self, **attributes: str) -> list[FlowState]:
        """Like `Flow.find`."""
        return await self._drive(calls.find(self.ops, attributes))

    async def result(self, id: str, timeout: float | timedelta | None = None) -> bytes | None:
        """Like `Flow.result`."""
        return await self._drive(self._result(id, timeout))

    async def cancel(self, id: str) -> bool:
        """Like `Flow.cancel`."""
        return await self._drive(calls.cancel(self.ops, id))

    async def counts(self) -> dict[str, Counts]:
        """Like `Flow.counts`."""
        return await self._drive(calls.counts(self.ops))

    async def mermaid(self, counts: bool = False) -> str:
        """Like `Flow.mermaid`."""
        return await self._drive(calls.drawing(self.ops, counts))

    async def close(self) -> None:
        """Like `Flow.close`."""
        await self._executor.close()
        self._left()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()
