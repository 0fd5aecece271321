"""The operations that every queue needs, as `Op`s. They are pure, so there is no client and no
clock.

Arguments are validated here, so that a bad one is refused before anything is sent.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

from attrs import evolve, field, frozen

from headrace._model import checks
from headrace._model.checks import LEVELS_AT_MOST, Context, millis, term
from headrace._model.codec import BytesCodec, Codec, as_bytes, bound, of_job, untyped
from headrace._model.job import COST, KEY, NOWHERE, PRIORITY, Cause, Claim, Home, NewJob, on_wire
from headrace._model.policy import bucket, staying, unconditional
from headrace._model.receipt import Receipt
from headrace._model.settings import QueueSettings
from headrace._model.shards import ENTRY_ID, apart, is_entry
from headrace._model.terms import IN_TERMS, cost as checked_cost
from headrace._protocol import replies
from headrace._protocol.jobs import Jobs
from headrace._protocol.keys import GROUP, IDLE, JOB_HEADER_PREFIX, Keys, job_id, job_key
from headrace._protocol.limits import (
    BYTES_PER_SCRIPT,
    CLAIMS_PER_SCRIPT,
    JOBS_PER_SCRIPT,
)
from headrace._protocol.op import Arg, Op, Prepared
from headrace._protocol.replies import Declaration, Entered, Grant, Reclaimed, Verdicts
from headrace._protocol.script import Script, script
from headrace.errors import ConfigurationError

T = TypeVar("T")
Item = tuple[str, str, list[str | bytes]]  # id, delay, fields
# a script, its keys, the keys of levels, the prefix of its lane
Shape = tuple[Script, list[str], list[str], str]
Delay = float | timedelta | datetime | None
FOLLOWED = ("jobs", "wake", "ids", "delayed", "bodies", "stats", "cancels", "events")
"""The keys of a follow-up's queue that `complete` takes, before the stream of its level."""


def _cost(item: bytes | Item) -> int:
    """Estimate the cost of a job in an `enqueue`. A plain payload costs 1, or 2 among other
    jobs."""
    if not isinstance(item, tuple):
        return 2
    if is_entry(item[0]):
        return JOBS_PER_SCRIPT  # the script reads any entry with this name, however large
    return 4 if item[1] else 3


def given(id: object) -> str | None:
    """Return the id to which a job's payload is bound. It is `None` for an id that may be an
    entry's name."""
    return id if isinstance(id, str) and not is_entry(apart(id)[0]) else None


def refuse_elsewhere(ops: Ops, job: NewJob[Any], *, sharded: bool | None = None) -> None:
    # of a task; *sharded*: whether a shard would take the job
    home: Home = getattr(job, "home", NOWHERE)
    if home is not NOWHERE and (
        what := home.differs(ops.servers(), ops.namespace, sharded=sharded)
    ):
        raise ConfigurationError(
            f"job of queue {job.queue!r}: its task is for another {what} than queue {str(ops.keys.queue)!r} here, and "
            "nobody would take it: give both the same url=, namespace= and shards=, or enqueue it by its task"
        )


@frozen
class Ops:
    """Maker of the operations of one queue. `worker` is always the name that leases and settles
    jobs."""

    keys: Keys
    settings: QueueSettings = QueueSettings()
    codec: Codec[Any] = BytesCodec()
    namespace: str = "headrace"
    # the names of their server, as far as they are known: see `Address.servers`
    servers: Callable[[], frozenset[Hashable]] = field(default=frozenset, eq=False, repr=False)
    # the codec, for the payloads of this queue
    bound: Codec[Any] = field(init=False, eq=False, repr=False)
    _shapes: dict[tuple[str, int], Shape] = field(
        init=False, eq=False, repr=False, factory=dict[tuple[str, int], "Shape"]
    )

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "bound", bound(self.codec, self.keys.queue, self.namespace))

    def op(
        self,
        name: str,
        args: Sequence[Arg],
        decode: Callable[[Any], T],
        extra: Sequence[str] = (),
        items: Sequence[Any] = (),
        join: Callable[[Sequence[Any]], Op[Any]] | None = None,
        priorities: int | None = None,
    ) -> Op[T]:
        """Make the operation of one script. *extra* are keys after the fixed keys. *priorities* is
        a number of levels that differs from the queue's.
        """
        count = priorities or self.settings.priorities
        source, keys, levels, lane = self._shapes.get((name, count)) or self._shape(name, count)
        return Op(name, source, [*keys, *extra, *levels], args, decode, lane, items, join)

    def _shape(self, name: str, priorities: int) -> Shape:
        source = script(name)
        keys = [self.keys.key(key) for key in source.key_names]
        levels = self.keys.levels(priorities) if source.levelled else []
        lane = self.keys.lane("") if source.recorded else ""
        return self._shapes.setdefault((name, priorities), (source, keys, levels, lane))

    @property
    def decoder(self) -> Jobs:
        return Jobs(self.keys.queue, self.bound)

    @property
    def number(self) -> int:
        """The number of the shard that these operations reach. It is 0 in a queue that is not
        sharded."""
        return 0

    @property
    def share(self) -> float:
        """The fraction of the queue's keys that these operations reach."""
        return 1.0

    # -- producing ---------------------------------------------------------------------------------

    def item(self, job: Any, context: Context | None = None) -> bytes | Item:
        """Check a payload or `NewJob`, and return its fields. If it has only a payload, return the
        encoded payload."""
        if not isinstance(job, NewJob):  # `is_new` would be one more call of each enqueue
            data = self.payload(job)
            return data if context is None else ("", "", ["data", data, *context()])
        if job.queue is not None and job.queue != self.keys.queue:
            raise ValueError(
                f"queue {job.queue!r} of a NewJob: only follow-ups (then=) may go to another queue"
            )
        refuse_elsewhere(self, job, sharded=self.settings.shards > 1)  # pyright: ignore[reportUnknownArgumentType]
        name, delay, fields = self._item(job)  # pyright: ignore[reportUnknownArgumentType]
        if context is not None:
            fields += checks.trace_headers(job.headers, context)
        return (name, delay, fields) if name or len(fields) > 2 else cast(bytes, fields[1])

    def payload(self, payload: Any) -> bytes:
        encoded: Any = self.bound.encode(payload)
        data: bytes = encoded if type(encoded) is bytes else as_bytes(encoded)
        if len(data) > checks.VALUE_BYTES:
            checks.check_size("payload", [data])
        return data

    def encoded(self, payload: Any, codec: Codec[Any] | None = None) -> bytes:
        data: Any = (codec or self.bound).encode(payload)
        return data if type(data) is bytes else as_bytes(data)

    def _item(
        self, job: NewJob[Any], priorities: int | None = None, codec: Codec[Any] | None = None
    ) -> Item:
        if job.unique_for is not None or job.if_exists is not None:
            unconditional(job)
        delay = "" if job.delay is None else checks.delay(job.delay)
        bare = job.headers is None and job.key is None and job.cost is None and not job.priority
        headers = [] if bare and type(job.priority) is int else self.headers(job, priorities)
        name = secrets.token_hex(12) if delay and job.id is None else ""
        if job.id is not None:
            name = job_id(job.id)
        data = job.payload
        if type(data) is not bytes or type(codec or self.codec) is not BytesCodec:
            data = self.encoded(data, of_job(codec or self.bound, given(job.id)))
        if 4 * (len(data) + sum(map(len, headers))) > checks.VALUE_BYTES:
            checks.check_size("payload and headers" if headers else "payload", [data, *headers])
        fields: list[str | bytes] = ["data", data, "id", name] if name else ["data", data]
        return name, delay, [*fields, *headers] if headers else fields

    def headers(self, job: NewJob[Any], priorities: int | None = None) -> list[str]:
        """Return a job's headers, with its level. Copied headers that describe another job are left
        out."""
        level = checks.level(job.priority, priorities or self.settings.priorities)
        flat = [] if job.headers is None else checks.headers(job.headers)
        if JOB_HEADER_PREFIX in "".join(flat[::2]):
            pairs = zip(flat[::2], flat[1::2], strict=True)
            flat = [
                text for pair in pairs if not pair[0].startswith(JOB_HEADER_PREFIX) for text in pair
            ]
        if job.key is not None:
            flat = [*flat, KEY, job_key(job.key)]
        if job.cost is not None:
            flat = [*flat, COST, checked_cost(job.cost)]
        return [*flat, PRIORITY, str(level)] if level else flat

    def reading(self, decode: Callable[[Any], T]) -> Callable[[Any], T]:
        """Wrap *decode* so that it returns public job ids."""
        return decode

    def enqueue(self, items: Sequence[bytes | Item]) -> Op[list[Receipt]]:
        """Add items made by `item`, at most `JOBS_PER_SCRIPT`."""
        if tuple not in set(map(type, items)):
            payloads = cast("Sequence[bytes]", items)
            decode = self.reading(replies.plain_receipts)
            return self.op("enqueue", ["plain", *payloads], decode, (), payloads, self.enqueue)
        args: list[Arg] = ["full"]
        for item in items:
            args += _arguments(item if isinstance(item, tuple) else ("", "", ["data", item]))
        alone = any(_cost(item) == JOBS_PER_SCRIPT for item in items)
        return self.op(
            "enqueue",
            args,
            self.reading(replies.receipts),
            (),
            items,
            None if alone else self.enqueue,
        )

    def batches(
        self, jobs: Iterable[Any], context: Context | None = None
    ) -> Iterable[Op[list[Receipt]]]:
        """Make operations of *jobs*, of at most `JOBS_PER_SCRIPT` and `BYTES_PER_SCRIPT` each.

        All jobs are checked first. Jobs with an id, headers or a delay take longer, so an operation
        has fewer of them.
        """
        jobs = checks.listed(jobs)
        encode = self.bound.encode
        plain = bytes if context is None else None
        items: list[bytes | Item] = [
            encode(job) if type(job) is plain else self.item(job, context) for job in jobs
        ]
        if max(map(len, items), default=0) > checks.VALUE_BYTES:  # others were checked one by one
            for item in items:
                checks.check_size("payload", [item] if isinstance(item, bytes) else [])
        start = 0
        while start < len(items):
            some = items[start : start + JOBS_PER_SCRIPT]
            sizes = [sum(map(len, i[2])) if isinstance(i, tuple) else len(i) for i in some]
            fit = bisect_right(list(accumulate(sizes)), BYTES_PER_SCRIPT)
            if tuple in set(map(type, some)):
                fit = min(fit, bisect_right(list(accumulate(map(_cost, some))), JOBS_PER_SCRIPT))
            fit = max(1, fit)
            yield self.enqueue(some[:fit])
            start += fit

    # -- leasing -----------------------------------------------------------------------------------

    def lease(
        self,
        worker: str,
        limit: int,
        *,
        duration: float | None = None,
        ttl: float = 0.0,
        woken: bool | Literal[2] = False,
        kind: type[Claim] = Claim,
        predecessor: str = "",
        batch: int = 1,
        same: bool = False,
        apart: Literal[0, 1, 2] = 1,
        fair: bool = False,
    ) -> Op[Grant | None]:
        """Hand out up to *limit* jobs, at most `CLAIMS_PER_SCRIPT`, as claims of *kind*.

        The jobs of *predecessor* go to the front. The answer `None` means that *worker* was
        declared dead. `woken=2`: hand out jobs only if one woke a reader. *apart*: whether a
        suspect may come, after other jobs or before (2). *fair*: the queue has terms. *batch* jobs
        share their time, and with *same* all jobs are of one value.
        """
        s = self.settings
        term_ms = "" if duration is None else term("duration", duration)
        args: list[Arg] = [
            worker,
            min(checks.count("limit", limit), CLAIMS_PER_SCRIPT),
            term_ms,
            millis(s.lease),
        ]
        args += [term("ttl", ttl, zero=True), int(s.max_attempts or 0), s.dead_limit, int(woken)]
        args += (predecessor, apart)
        if fair:
            args += (checks.count("batch", batch), int(same), *self.order())
        else:
            args += self.buckets()
        jobs = self.decoder
        name = "lease_fair" if fair else "lease"
        return self.op(name, args, lambda reply: jobs.grant(reply, worker, duration, kind))

    def buckets(self) -> list[Arg]:
        args: list[Arg] = []
        for rate in self.settings.rates:
            step, tokens = bucket(rate, self.share)
            args += (rate.key or "", f"{step:.6f}", tokens)
        return [*args, *self.order()]

    def order(self) -> tuple[Arg, ...]:
        """Return the order of keys as scripts take it. In a queue with terms, the rate limits are
        among its terms."""
        return (KEY, 0, 1) if self.settings.ordered else ()

    def wait(self, block: float, *, paused: bool = False) -> tuple[Arg, ...]:
        return blocked_read((self.keys,), block, paused=paused)

    # -- settling ----------------------------------------------------------------------------------

    def complete(
        self,
        claims: Sequence[Claim],
        *,
        fenced: bool | None = None,
        results: Mapping[str, bytes] | None = None,
        then: Sequence[NewJob[Any]] = (),
    ) -> Op[list[bool]]:
        """Remove *claims*' jobs for good. *results* has results by entry. *then* has the follow-ups
        of a single claim.
        """
        if isinstance(then, NewJob) or not isinstance(then, Sequence):
            raise TypeError(f"then must be a list of NewJob objects, not {type(then).__name__}")
        if fenced is not None and not isinstance(fenced, bool):
            raise TypeError(f"fenced must be a bool or None, not {type(fenced).__name__}")
        fence = self.settings.fenced or self.settings.ordered if fenced is None else fenced
        with_ids = any(c.named for c in claims)
        results = results or {}
        away = [self.away(job) for job in then]
        here = away.count("")
        args: list[Arg] = [
            claims[0].worker if fence else "",
            len(claims),
            int(with_ids),
            len(results),
            here,
        ]
        args += [c.entry for c in claims]
        if fence:
            args += [c.count for c in claims]
        if with_ids:
            args += [on_wire(c.job.id) if c.named else "" for c in claims]
        extra: list[str] = []
        for number, claim in enumerate(claims, 1) if results else ():
            if claim.entry in results:
                args += (number, millis(self.settings.result_ttl), results[claim.entry])
                extra.append(self.keys.result(claim.job.id if claim.named else claim.entry))
        follows = [self.follow(job) for job in then]
        instead = "enqueue the others before, with ids of their own"
        checks.limit_batch(
            "then",
            [fields for _, _, _, fields in follows],
            JOBS_PER_SCRIPT,
            BYTES_PER_SCRIPT,
            instead,
        )
        if results and then:
            checks.check_size(
                "result and then",
                [*results.values(), *(x for _, _, _, fields in follows for x in fields)],
            )
        handed: list[Arg] = []
        for job, outbox, (keys, name, delay, fields) in zip(then, away, follows, strict=True):
            if outbox:
                handed += (">1", outbox, name, delay, len(fields), *fields)
                continue
            args += (1, name, delay, job.priority, len(fields), *fields)
            extra += [keys.key(key) for key in FOLLOWED]
            extra.append([keys.key("jobs"), *keys.levels(LEVELS_AT_MOST)][job.priority])
        args += staying(claims) if with_ids else ()
        if handed:
            args += handed
            extra += (self.keys.key("outbox"), self.keys.key("outdue"))
        if self.settings.history:
            args += [
                f"{claim.job.attempt} {claim.worker} {claim.began} {claim.token}"
                for claim in claims
            ]
        alike = not (fence or results or then)
        done = replies.completed(claims, self.bound)
        return self.op("complete", args, done, extra, claims, self._complete_all if alike else None)

    def _complete_all(self, claims: Sequence[Claim]) -> Op[list[bool]]:
        return self.complete(claims, fenced=False)

    def away(self, job: NewJob[Any]) -> str:  # noqa: ARG002 - one script reaches all that a plain queue's do
        """Name a follow-up for the outbox, if it belongs to another shard. Returns '' for any
        other."""
        return ""

    def follow(
        self, job: NewJob[Any], there: Keys | None = None
    ) -> tuple[Keys, str, str, list[str | bytes]]:
        """Check a follow-up. Its queue must be in this queue's group, which shares one hash slot,
        unless it is given by *there*, the keys of a queue in another slot."""
        if not isinstance(job, NewJob):
            raise TypeError(f"then must hold NewJob objects, not {type(job).__name__}")
        keys = there or (self.keys if job.queue is None else self._near("then: queue", job.queue))
        refuse_elsewhere(self, job, sharded=None if there else self.settings.shards > 1)
        own = keys == self.keys  # another queue's payloads may be of another type
        # a task's job knows its own codec
        codec = getattr(job, "codec", None) or untyped(self.codec)
        return keys, *(
            self._item(job)
            if own
            else self._item(job, LEVELS_AT_MOST, bound(codec, keys.queue, self.namespace))
        )

    def _near(self, what: str, queue: str) -> Keys:
        """Return the keys of another queue. It must be in this queue's group, so that a script can
        reach both."""
        keys = Keys.of(queue, self.namespace)
        if keys.group != self.keys.group:
            raise ConfigurationError(
                f"{what} {queue!r} is of group {keys.group!r}, this one of {self.keys.group!r}; "
                "one script reaches one group only: name both queues '<group>/<part>', or enqueue it yourself"
            )
        return keys

    def renew(
        self, claims: Sequence[Claim], *, duration: float | None = None, ttl: float = 0.0
    ) -> Op[list[bool]]:
        # of one worker, from now on
        term_ms = "" if duration is None else term("duration", duration)
        args: list[Arg] = [claims[0].worker, term_ms, term("ttl", ttl, zero=True)]
        for claim in claims:
            args += (claim.entry, claim.count)
        return self.op("renew", args, replies.bools)

    def release(self, claims: Sequence[Claim], *, pause: float = 0.0) -> Op[list[bool]]:
        """Give jobs of one worker back to the front of the queue, at once or after *pause*
        seconds."""
        args: list[Arg] = [claims[0].worker, term("pause", pause, zero=True)]
        for claim in claims:
            args += (claim.entry, claim.count)
        return self.op("release", args, replies.bools)

    def retry(
        self,
        items: Sequence[tuple[Claim, Delay, int, str | Cause]],
        *,
        max_attempts: int | None = None,
    ) -> Op[Verdicts]:
        """Retry jobs of one worker. Each item has a claim, a delay, the attempts spent (1, 0, or -1
        to restore all), and a reason. *max_attempts* is the queue's limit or another one, and 0 for
        none.
        """
        if max_attempts is not None:
            checks.count("max_attempts", max_attempts, least=0)
        limit = self.settings.max_attempts if max_attempts is None else max_attempts
        args: list[Arg] = [items[0][0].worker, int(limit or 0), self.settings.dead_limit]
        for claim, delay, spend, reason in items:
            traced = getattr(claim, "trace", None)
            args += (claim.entry, claim.count, checks.delay(delay))
            args += (
                int(spend) if traced is None else f"{int(spend)} {traced}",
                self._cause(claim, reason),
            )
        return self.op(
            "retry", args, replies.verdicts([(claim, reason) for claim, _, _, reason in items], 2)
        )

    def dead_letter(self, items: Sequence[tuple[Claim, str | Cause]]) -> Op[Verdicts]:
        # of one worker
        args: list[Arg] = [items[0][0].worker, self.settings.dead_limit]
        for claim, reason in items:
            args += (claim.entry, claim.count, self._cause(claim, reason))
        return self.op("dead_letter", args, replies.verdicts(items, 1))

    def _cause(self, claim: Claim, reason: str | Cause) -> str | bytes:
        return (
            checks.attempt(reason, claim.began) if self.settings.history else checks.cause(reason)
        )

    # -- a worker's life ---------------------------------------------------------------------------

    def beat(
        self, worker: str, timeout: float, *, register: bool = False, kinds: Sequence[str] = ()
    ) -> Op[bool]:
        """Tell the server that *worker* is alive. The answer is `False` if it was declared dead.
        *kinds* names the kinds of jobs with a handler.
        """
        args: list[Arg] = [
            worker,
            term("timeout", timeout),
            millis(self.settings.lease),
            int(register),
            *kinds,
        ]
        return self.op("beat", args, bool)

    def register(
        self,
        worker: str,
        name: str,
        timeout: float,
        seen: str = "",
        *,
        decide: bool = False,
        kinds: Sequence[str] = (),
    ) -> Op[Entered]:
        """Register *worker* under *name*, which may be taken. *kinds* names the kinds of jobs that
        it has handlers for.

        *seen*: `other` of the last answer, or ''. With *decide*, workers in *seen* without a
        heartbeat since then count as dead.
        """
        args: list[Arg] = [
            worker,
            name,
            term("timeout", timeout),
            millis(self.settings.lease),
            seen,
            int(decide),
        ]
        args += kinds
        return self.op("register", args, replies.entered)

    def declaration(self) -> dict[str, str]:
        """Return the declaration of one user. It has the codec, and the options that it gives and
        all users must agree on.

        Plain bytes declare no codec, because a program that sends or takes them decodes nothing.
        """
        if type(self.codec) is BytesCodec:
            return self.settings.declared()
        return {
            "codec": str(getattr(self.codec, "name", type(self.codec).__name__)),
            **self.settings.declared(),
        }

    def declare(
        self, *, serving: bool, more: Mapping[str, str] = MappingProxyType({})
    ) -> Op[Declaration]:
        """Declare how this queue is meant to be used, and *more* in words. The declaration of a
        worker, *serving*, counts from then on.
        """
        said = {**self.declaration(), **more}
        if serving and self.settings.terms is not None:  # they are declared with the terms
            said = {name: value for name, value in said.items() if name not in IN_TERMS}
        words = [word for pair in said.items() for word in pair]
        return self.op("declare", [int(serving), *words], replies.declaration)

    def reclaim(self, worker: str, timeout: float) -> Op[Reclaimed]:
        """Return jobs of dead workers and expired leases, and promote due jobs. It takes at most
        `CLAIMS_PER_SCRIPT` of each.
        """
        s = self.settings
        args: list[Arg] = [
            worker,
            term("timeout", timeout),
            millis(s.lease),
            CLAIMS_PER_SCRIPT,
            millis(s.ageing or 0),
        ]
        return self.op("reclaim", args, replies.reclaimed)

    def leave(self, worker: str, *, idle: bool = False) -> Op[tuple[int, str]]:
        """Release the jobs of *worker* and end its registration. '1' in the answer asks for another
        call.

        *idle*: only if the worker holds no job. '1' then says that it stays registered.
        """
        return self.op("leave", [worker, CLAIMS_PER_SCRIPT, int(idle)], replies.moved)

    def target(self, to: str) -> Keys:
        return Keys.of(to, self.namespace)  # of any group: a cluster refuses keys in two slots


def blocked_read(queues: Sequence[Keys], block: float, *, paused: bool = False) -> tuple[Arg, ...]:
    """Block until one of these queues may have a job to lease, *block* seconds at most.

    A delivered entry goes to a reserved consumer, from which the next `lease` of any worker takes
    it. So a lost reply or a cancelled read loses nothing. While queues are *paused*, the read must
    deliver nothing, and wake every waiter when a queue is resumed.
    """
    milliseconds = max(1, term("block", block, zero=True))  # 0 would block for ever
    wakes = [keys.key("wake") for keys in queues]
    if paused:
        return ("XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", *wakes, *["$"] * len(wakes))
    streams = [keys.key("jobs") for keys in queues]
    fresh = [">"] * (2 * len(wakes))
    return (
        "XREADGROUP",
        "GROUP",
        GROUP,
        IDLE,
        "COUNT",
        1,
        "BLOCK",
        milliseconds,
        "STREAMS",
        *streams,
        *wakes,
        *fresh,
    )


def forgotten_read(queues: Sequence[Keys]) -> tuple[Arg, ...]:
    """Read wake-ups that no lease call has taken. Their reader may have died, or may hang.

    This raises the entry's delivery count, which does not matter, because the lease sets the count
    that matters.
    """
    streams = [keys.key(key) for key in ("jobs", "wake") for keys in queues]
    return (
        "XREADGROUP",
        "GROUP",
        GROUP,
        IDLE,
        "COUNT",
        1,
        "STREAMS",
        *streams,
        *["0"] * len(streams),
    )


def woken_keys(reply: Any, keys: Collection[str]) -> list[str]:
    """List the *keys* in which a blocked read found entries. These are all keys, if its reply does
    not tell."""
    # the error names a missing group, which the following lease call makes
    if isinstance(reply, Exception):
        return [key for key in keys if f"'{key}'" in str(reply)] or list(keys)
    rows = cast(
        "Iterable[tuple[bytes, Any]]", reply.items() if isinstance(reply, dict) else reply or ()
    )  # RESP3, RESP2
    names = [key.decode() for key, entries in rows if entries]
    return [name for name in names if name in keys]


def _arguments(item: Item) -> tuple[str | bytes, ...]:
    return item[0], item[1], str(len(item[2])), *item[2]


def _weight(item: Item) -> int:
    return BYTES_PER_SCRIPT if ENTRY_ID.fullmatch(item[0]) else sum(map(len, item[2]))


def enqueue_one(ops: Ops) -> Prepared[bytes, tuple[str, bool]]:
    """Prepare the call that adds one job with only a payload. Its answer is the job's id, and that
    it was added."""
    op: Op[tuple[str, bool]] = ops.op("enqueue_one", [], lambda reply: (replies.text(reply), True))
    return Prepared[bytes, tuple[str, bool]].made(
        lambda payloads: evolve(cast("Op[Any]", ops.enqueue(payloads)), decode=replies.plain_added),
        evolve(op, name="enqueue"),
        lambda payload: (payload,),
        len,
    )


def enqueue_full(ops: Ops) -> Prepared[Item, tuple[str, bool]]:
    return Prepared[Item, tuple[str, bool]].made(
        lambda items: evolve(cast("Op[Any]", ops.enqueue(items)), decode=replies.added),
        ops.op("enqueue", [], lambda reply: (replies.text(reply[0]), reply[1] == 1)),
        lambda item: ("full", *_arguments(item)),
        _weight,
    )
