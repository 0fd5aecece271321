"""What both colours of a queue share: the handles that settle, and arguments turned into operations."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar
from zoneinfo import ZoneInfo

from attrs import field, frozen

from headrace import _calls as calls
from headrace import _settings as checked
from headrace._calls import Call
from headrace._codec import Codec, chosen
from headrace._embedded import EmbeddedServer
from headrace._event import kinds as checked_kinds
from headrace._execute import server
from headrace._job import Claim, Job, NewJob, Receipt
from headrace._keys import Keys, job_id
from headrace._observe import Receiving, Sending, Settling, wanted
from headrace._op import Op
from headrace._ops import Ops
from headrace._schedule import Timing
from headrace._settings import QueueSettings, Rate
from headrace._tracing import Place

Q = TypeVar("Q")
Delay = float | timedelta | datetime | None


@frozen(eq=False)
class Handle(Generic[Q]):
    claim: Claim
    _queue: Q = field(repr=False)

    @property
    def job(self) -> Job:
        """The job: `id`, `payload`, `headers`, `attempt`, `enqueued_at`."""
        return self.claim.job

    @property
    def token(self) -> int:
        """Grows with every delivery of the job: for your own fencing (`… WHERE token < :token`)."""
        return self.claim.token

    @property
    def worker(self) -> str:
        """The name it was leased under."""
        return self.claim.worker


class Face:
    """What both colours share: settings, and arguments turned into operations and calls."""

    def __init__(
        self, name: str, url: str | None, client: object, wanted: type, namespace: str, lease: float | timedelta,
        max_attempts: int | None, priorities: int, codec: Codec | None, dead_limit: int,
        result_ttl: float | timedelta, fenced: bool, rate: Rate | Sequence[Rate] | None,
        ageing: float | timedelta | None,
    ) -> None:  # fmt: skip
        settings = QueueSettings(
            lease=lease, max_attempts=max_attempts, priorities=priorities, dead_limit=dead_limit,
            result_ttl=result_ttl, fenced=fenced, rates=rate, ageing=ageing,
        )  # fmt: skip
        self.name = name
        self.ops = Ops(Keys.of(name, namespace), settings, chosen(codec), namespace)
        self._peer = self._new_peer()
        self._pid = os.getpid()
        self._embedded: EmbeddedServer | None = None
        self._url = server(url, client, wanted, self)
        if self._url is not None and self._url.startswith("embedded:"):
            self._embedded = EmbeddedServer.join(self._url.removeprefix("embedded:") or ".")
            self._url = f"unix://{self._embedded.path}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _new_peer(self) -> calls.Peer:
        return calls.Peer(self.ops, f"queue-{secrets.token_hex(8)}")

    def _left(self) -> None:
        if self._embedded is not None:
            self._embedded.leave()
            self._embedded = None

    def _new(
        self,
        payload: Any,
        id: str | None,
        headers: Mapping[str, str] | None,
        delay: Delay,
        priority: int,
    ) -> tuple[Op[list[Receipt]], Sending | None]:
        job = NewJob(payload, id, headers, delay, priority)
        if isinstance(payload, NewJob):
            if job != NewJob(payload):
                raise TypeError("give id, headers, delay and priority to the NewJob, not beside it")
            job = payload
        sending = Sending(self._place, headers=job.headers) if wanted() else None
        return self.ops.enqueue([self.ops.item(job, None if sending is None else sending.context)]), sending

    def _many(self, jobs: Iterable[Any], trace_each: bool) -> tuple[Call[list[Receipt]], Sending | None]:
        sending = Sending(self._place, jobs, batch=True, each=trace_each) if wanted() else None
        return calls.enqueue_many(self.ops, jobs, None if sending is None else sending.context), sending

    def _leasing(
        self,
        limit: int,
        block: float | timedelta | None,
        duration: float | timedelta | None,
        once: bool,
    ) -> tuple[Call[list[Claim]], Receiving | None]:
        checked.count("n", limit)
        wait = None if block is None else checked.seconds("block", block)
        term = None if duration is None else checked.seconds("duration", duration, zero=False)
        if self._pid != os.getpid():  # a fork has a name of its own
            self._peer, self._pid = self._new_peer(), os.getpid()
            self._place.client = self._peer.name
        receiving = Receiving(self._place, batch=limit > 1) if wanted() else None
        return self._peer.lease(limit, wait, term, once), receiving

    def _complete(
        self, lease: Handle[Any], result: Any, then: Sequence[NewJob], fenced: bool | None
    ) -> tuple[Op[list[bool]], Settling | None]:
        claim = self._claim(lease)
        results = {} if result is None else {claim.entry: self.ops.result_bytes(result)}
        settling = Settling(self._place, "complete", [claim.job]) if wanted() else None
        if settling is not None:
            then = settling.follow(then, self._next)
        return self.ops.complete([claim], fenced=fenced, results=results, then=then), settling

    def _next(self, job: NewJob) -> Place:
        return self._place if job.queue is None else Place(job.queue, self._settings)

    def _complete_many(
        self, leases: Sequence[Handle[Any]], fenced: bool | None
    ) -> tuple[Call[list[bool]], Settling | None]:
        claims = [self._claim(lease) for lease in leases]
        jobs = [claim.job for claim in claims]
        settling = Settling(self._place, "complete", jobs, batch=True) if claims and wanted() else None
        return calls.each(lambda some: self.ops.complete(some, fenced=fenced), claims), settling

    def _settle(
        self, op: Callable[[Claim], Op[list[bool]]], lease: Handle[Any]
    ) -> tuple[Op[list[bool]], Settling | None]:
        claim = self._claim(lease)
        made = op(claim)
        return made, Settling(self._place, made.name, [claim.job]) if wanted() else None

    def _seen(self, pool: Any) -> None:
        """How traces and metrics name this queue, now that it is known where it is."""
        self._settings: Mapping[str, Any] = pool.connection_kwargs
        self._place = Place(self.name, self._settings, self._peer.name)

    def _renew(self, lease: Handle[Any], duration: float | timedelta | None) -> Op[list[bool]]:
        claim = self._claim(lease)
        term = claim.duration if duration is None else checked.seconds("duration", duration, zero=False)
        return self.ops.renew([claim], duration=term, ttl=self._peer.ttl(term))

    def _schedule(
        self, name: str, job: NewJob, every: float | timedelta | None, cron: str | None,
        timezone: str | ZoneInfo | None, missed: str,
    ) -> Call[bool]:  # fmt: skip
        build = self.ops.schedule(name, Timing.of(every, cron, timezone), missed, job)
        return calls.schedule(self.ops, build)

    def _payload(self, payload: Any) -> Call[int]:
        return calls.cancel_payload(self.ops, self.ops.codec.encode(payload))

    def _move(self, to: str, ids: Sequence[str]) -> Call[int]:
        return calls.by_ids(partial(self.ops.move, to), ids, 200)

    def _drain(self, timeout: float | timedelta | None) -> Call[bool]:
        return calls.drain(self.ops, None if timeout is None else checked.seconds("timeout", timeout))

    def _result(self, id: str, timeout: float | timedelta | None) -> Call[bytes | None]:
        return calls.result(self.ops, id, None if timeout is None else checked.seconds("timeout", timeout))

    def _results(self, ids: Iterable[str], timeout: float | timedelta | None) -> Call[dict[str, bytes]]:
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
            raise TypeError(f"ids must be an iterable of str, not {type(ids).__name__}")
        names = [job_id(name) for name in ids]
        return calls.results(self.ops, names, None if timeout is None else checked.seconds("timeout", timeout))

    def _listening(self, kinds: object, timeout: float | timedelta | None) -> tuple[tuple[str, ...], float | None]:
        quiet = None if timeout is None else checked.seconds("timeout", timeout, zero=False)
        return checked_kinds(kinds), quiet

    def _claim(self, lease: object) -> Claim:
        if not isinstance(lease, Handle):
            raise TypeError(f"lease must be what lease() or lease_many() gave, not {type(lease).__name__}")
        claim: Claim = lease.claim
        if claim.job.queue != self.name:  # entries of two queues may have the same ID
            raise ValueError(f"lease of a job of queue {claim.job.queue!r}: settle it there, not in {self.name!r}")
        return claim
