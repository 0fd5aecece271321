# Generated from `headrace/_api/aio/flow.py` by .ci/twins.py: edit that file.
"""`Flow` has jobs that pass through several queues of one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from headrace._api.flow import BaseFlow
from headrace._api.queue import BaseLease, Delay
from headrace._api.sync.colour import Closing, Redis
from headrace._model.checks import seconds
from headrace._model.codec import Codec
from headrace._model.flow import FlowState
from headrace._model.policy import Durability
from headrace._model.receipt import Receipt
from headrace._model.state import Counts
from headrace._net.base.address import Address, Client
from headrace._net.base.retries import bounding
from headrace._net.sync.driver import Driver
from headrace.errors import NotDurable


class Flow(Closing, BaseFlow, Driver):
    """Stages that a job passes through. Each stage is a queue of one group, such as
    `orders/validate` and `orders/charge`.

    - *name*: the group's, 1-200 letters, digits, `.`, `_`, `-`.
    - *url* or *client*, *namespace*, *codec*: as for `Queue`.
    - *lookup*: the attributes by which `find` looks runs up.
    - *result_ttl*: seconds that a run's state is kept after its end. *dead_limit*, *fenced*,
      *timeout*, *durable*: as for `Queue`.
    - *shards*: as for `Queue`. A run is in one shard, with all its jobs.

    Declare the stages with `stage`, serve them with `worker.flow(flow)`. All programs of a flow
    declare the same. One object may be shared by threads, and survives a fork.
    """

    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        client: Client | None = None,
        namespace: str = "headrace",
        codec: Codec[Any] | None = None,
        lookup: Sequence[str] = (),
        dead_limit: int = 1000,
        result_ttl: float | timedelta = 86400,
        fenced: bool = False,
        timeout: float | timedelta = 45.0,
        durable: str | None = None,
        shards: int = 1,
    ) -> None:
        self._address = Address.of(url, client, Redis, self)
        super().__init__(
            name, namespace, codec, lookup, dead_limit, result_ttl, fenced, shards, self._address
        )
        self._durable = Durability.of(durable)
        self._within = bounding(seconds("timeout", timeout, zero=False))

    def start(
        self,
        payload: Any,
        *,
        id: str | None = None,
        attributes: Mapping[str, str | Sequence[str]] | None = None,
        stage: str | None = None,
        delay: Delay = None,
        headers: Mapping[str, str] | None = None,
        durable: str | None = None,
    ) -> Receipt:
        """Begin a run with *payload* in the first stage, or in *stage*. flow_start.lua, O(1).

        With *id* (no `/`), a run of that id that has not ended is left as it is, and the receipt
        has `added=False`. *attributes*: text, or lists of it, which every stage sees. *durable*:
        where the write must be before the call returns. By default it is the flow's. `NotDurable`
        means that the run has begun.
        """
        try:
            return self._drive(
                *self._start(payload, id, attributes, stage, delay, headers, durable)
            )
        except NotDurable as error:
            error.receipts = error.answers  # the run has begun
            raise

    def complete(
        self,
        lease: BaseLease[Any, Any],
        outcome: Any = None,
        fenced: bool | None = None,
        *,
        durable: str | None = None,
    ) -> bool:
        """Complete a stage's job that you leased yourself, with a result, `Next` or `FanOut`, as a
        worker does.

        `True` for exactly one caller. The job is in its next stage, or its children are there, in
        the same script. `False` also if the flow would go to a stage that is not declared here.
        flow_advance.lua, O(children).
        """
        return self._drive(*self._complete(lease, outcome, fenced, durable))[0]

    def state(self, id: str) -> FlowState | None:
        """Return the state of a run, or of a child by its id (`<parent>/<fan-out>/<name>`). Returns
        `None` if the id is unknown by now.

        Calls made outside the flow, such as a redrive, are taken into account first. flow_read.lua,
        O(children).
        """
        return self._drive(self._verbs.state(id))

    def find(self, **attributes: str) -> list[FlowState]:
        """Find the unfinished runs that have all these attributes. flow_find.lua, flow_read.lua,
        page by page."""
        return self._drive(self._verbs.find(attributes))

    def result(self, id: str, timeout: float | timedelta | None = 0.0) -> Any:
        """Return the result of the run's last stage. Waits up to *timeout* seconds for it. 0 looks
        once, and `None` waits for ever.

        `None` if there is none, or not in time. Raises `JobFailed` if the run has failed or was
        cancelled, `CodecError` for a result that the flow's codec does not decode.
        """
        return self._drive(self._result(id, timeout))

    def cancel(self, id: str) -> bool:
        """Cancel a run with all its children, in any state, or a child with its own children.
        Returns `False` if it has ended or never was.

        Workers that hold their jobs find the leases lost. flow_advance.lua, part by part.
        """
        return self._drive(self._verbs.cancel(id))

    def counts(self) -> dict[str, Counts]:
        """Count the jobs of each stage's queue, one queue after the other. counts.lua."""
        return self._drive(self._verbs.counts())

    def mermaid(self, counts: bool = False) -> str:
        """Draw the declared stages as a Mermaid flowchart. With *counts*, it shows also the number
        of jobs in each stage now.
        """
        return self._drive(self._verbs.drawing(counts))

    def close(self) -> None:
        """Close the connections we opened, nothing else."""
        if self._address.executor is not None:
            self._executor.close()
        self._detach()
