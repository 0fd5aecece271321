"""Foreign data ends no role. It comes from handlers, entries, messages and replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

from attrs import evolve
from hypothesis import given, strategies as st

from headrace import BatchError, Complete, DeadLetter, FanOut, Next, Release, Retry, RetryLater
from headrace._core.effects import HeldJob, Phase, Role, Send
from headrace._core.flows.consumer import FlowConsumer
from headrace._core.verdicts import judge, meant
from headrace._core.worker.consumer import Consumer
from headrace._core.worker.fetch import fetch, settlements
from headrace._core.worker.renewal import check_named
from headrace._core.worker.variants import KindConsumer, PersistentConsumer
from headrace._model.settings import QueueSettings
from headrace._protocol.features.flows.ops import FlowOps
from headrace._protocol.keys import FLOW, Keys
from headrace._protocol.queue_ops import Ops
from headrace.errors import REASON_CHARACTERS, Verdict, describe_error
from tests.unit.core.test_roles import Hand, make_consumer, make_held


class Panic(BaseException):
    """An exception like one of a Rust extension."""


def _raises(*_: Any, **__: Any) -> Any:
    raise Panic


class Text(str):
    """A str whose methods raise."""

    __slots__ = ()
    __getitem__ = __len__ = __format__ = __str__ = __repr__ = encode = __bool__ = __hash__ = (
        __eq__
    ) = _raises


class Zone(tzinfo):
    """A time zone that knows its offset once."""

    def __init__(self) -> None:
        self.asked = 0

    def utcoffset(self, _: datetime | None) -> timedelta:
        self.asked += 1
        if self.asked > 2:
            raise Panic
        return timedelta(0)


class Number(float):
    """A float that can't be compared."""

    __slots__ = ()
    __lt__ = __gt__ = __le__ = __ge__ = __bool__ = __float__ = __sub__ = __rsub__ = _raises


class Lying:
    """An object that raises whatever it is asked."""

    __class__ = property(_raises)  # type: ignore[assignment]
    __bool__ = __str__ = __repr__ = __len__ = __iter__ = __eq__ = __hash__ = __float__ = (
        __bytes__
    ) = _raises


class Mean(Exception):
    """An exception that raises whatever it is asked."""

    args = property(_raises)  # type: ignore[assignment]
    __class__ = property(_raises)  # type: ignore[assignment]
    __bool__ = __str__ = __repr__ = __format__ = __eq__ = __hash__ = __reduce__ = _raises


class Meta(type):
    """A class whose name can't be read."""

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__", "__mro__"):
            raise Panic
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Meta):
    pass


class MeanVerdict(Release):
    __bool__ = __str__ = __repr__ = _raises


class MeanDead(DeadLetter):
    @property
    def reason(self) -> Any:
        raise Panic

    @reason.setter
    def reason(self, value: Any) -> None:
        pass


class MeanStop(StopIteration):
    __repr__ = __str__ = _raises


class Failures(dict[Any, Any]):
    """Verdicts of a batch that raise when they are read."""

    get = __getitem__ = _raises


def made(kind: Any, **values: Any) -> Any:
    """Return an object with these attributes, without a call of its constructor."""
    it = kind.__new__(kind)
    for name, value in values.items():
        object.__setattr__(it, name, value)
    return it


class Picks:
    """Choices that hypothesis makes by number, because some of the values can't be printed or
    compared."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def of(self, *choices: Callable[[], Any]) -> Any:
        number = self.numbers.pop() if self.numbers else 0
        return choices[number % len(choices)]()

    def junk(self) -> Any:
        """Return any object."""
        values: list[Any] = [
            None, True, False, 0, -1, 1 << 70, 0.5, -5.0, math.nan, math.inf, "x", "", "\ud800", "x" * 5000, b"x",
            b"\xff", b"x" * 5000, bytearray(b"x"), memoryview(b"x"), timedelta.max, timedelta.min, [], {}, object(),
            datetime.max.replace(tzinfo=UTC), Lying, Nameless,
            datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
        ]  # fmt: skip
        some: list[Callable[[], Any]] = [lambda value=value: value for value in values]
        return self.of(
            *some,
            Lying,
            Mean,
            lambda: Text("x"),
            lambda: Number(5),
            lambda: datetime(2030, 1, 1, tzinfo=Zone()),
            lambda: datetime(2030, 1, 1),  # noqa: DTZ001
        )

    def error(self) -> Any:
        """Return any exception or class of one."""
        return self.of(
            ValueError, Mean, Nameless, Panic, MeanVerdict, lambda: made(MeanDead), MeanStop, GeneratorExit, Verdict,
            StopAsyncIteration, RecursionError, MemoryError, KeyboardInterrupt, Release, lambda: SystemExit(3),
            lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
            lambda: ExceptionGroup("a", [ValueError(), ExceptionGroup("b", [Mean()])]),
            lambda: BaseExceptionGroup("a", [Panic(), SystemExit()]),
            lambda: ValueError(self.junk()), lambda: ValueError("x" * 5000), lambda: ValueError("\ud800"),
            *[lambda: made(RetryLater, delay=self.junk(), reason=self.junk(), spend=self.junk())] * 5,
            *[lambda: made(DeadLetter, reason=self.junk())] * 3,
            *[lambda: made(Complete, result=self.junk())] * 3,
            *[lambda: made(BatchError, failures=self.failures())] * 3,
        )  # fmt: skip

    def failures(self) -> Any:
        """Return a batch handler's failures by job."""
        either = lambda: self.of(self.junk, self.error)  # noqa: E731
        return self.of(
            self.junk,
            Failures,
            lambda: {"1-0": either()},
            lambda: {"1-0": either(), "2-0": either()},
        )

    def result(self) -> Any:
        """Anything that can be returned."""
        kinds: list[Any] = [RetryLater, DeadLetter, Complete, Release, Verdict, BatchError, Lying]
        returned: list[Callable[[], Any]] = [lambda kind=kind: kind for kind in kinds]
        return self.of(
            *returned, *[self.junk] * 5, *[self.error] * 5, *[self.failures] * 3,
            lambda: made(Next, stage=self.junk(), result=self.junk()), lambda: Next(None, self.junk()),
            lambda: FanOut(self.junk()), lambda: FanOut([self.junk(), self.junk()]),
        )  # fmt: skip


class Loose:
    """A codec that checks nothing."""

    def encode(self, payload: Any) -> Any:
        return payload

    def decode(self, data: bytes) -> Any:
        return data


def consumers(attempt: int) -> Iterator[tuple[Consumer, list[HeldJob]]]:
    """Return a consumer of each kind, with the function that its handler runs."""
    for kind in (Consumer, KindConsumer, PersistentConsumer, FlowConsumer, "batch", "loose", "on"):
        options: dict[str, Any] = {"batch": True, "max_size": 2} if kind == "batch" else {}
        retry = (
            Retry(on={ValueError: lambda error: error, Mean: lambda _: Lying()})
            if kind == "on"
            else None
        )
        plain = make_consumer(retry=retry, **options)
        ops = evolve(plain.ops, codec=Loose()) if kind == "loose" else plain.ops
        handler = plain.handler
        more: dict[str, Any] = {}
        if kind is KindConsumer:
            handler = evolve(handler, kinds={None: handler})
        if kind is FlowConsumer:
            flow = FlowOps("f", "headrace", settings=QueueSettings(dead_limit=10, result_ttl=60))
            flow.declare("s", (), (), {"queue_settings": QueueSettings()})
            ops, more = Ops(Keys.of("f/s"), QueueSettings()), {"flow": flow}
        made = (kind if isinstance(kind, type) else Consumer)(
            ops, handler, "w", plain.default_wait, **more
        )
        unit = [make_held(made, n, attempt=attempt) for n in ((1, 2) if kind == "batch" else (1,))]
        for held in unit:
            if kind is FlowConsumer:
                held.job = evolve(held.job, queue="f/s", headers={FLOW: flow.run(held.job.id)})
            made.jobs.held[held.entry] = held
        yield made, unit


@given(
    st.lists(st.integers(0, 1 << 30), max_size=12),
    st.booleans(),
    st.booleans(),
    st.integers(1, 100),
)
def test_whatever_a_handler_raises_or_returns_settles_its_jobs(
    numbers: list[int], raises: bool, stopping: bool, attempt: int
) -> None:
    """Each job is settled once, by operations that can be sent."""
    for consumer, unit in consumers(attempt):
        picks = Picks(numbers.copy())
        error, result = (picks.error(), None) if raises else (None, picks.result())
        consumer.phase = Phase.DRAINING if stopping else Phase.RUNNING
        for held in unit:
            held.started = 1.0
        consumer.finished(unit, 2.0, error, result)
        assert not consumer.jobs.held
        assert all(held.ended for held in unit)
        settling = settlements(consumer)
        assert sorted(claim.entry for claim in settling.claims) == [held.entry for held in unit]
        assert settling.next_due is None or settling.next_due >= 0
        for op in settling.ops:
            assert bytes(op.body)
            assert op.size > 0


@given(st.lists(st.integers(0, 1 << 30), max_size=12))
def test_whatever_is_raised_has_words(numbers: list[int]) -> None:
    words = describe_error(Picks(numbers).error())
    assert type(words) is str
    assert len(words) <= REASON_CHARACTERS


@given(st.lists(st.integers(0, 1 << 30), max_size=12), st.booleans(), st.booleans())
def test_only_what_is_the_user_s_is_raised_while_one_judges(
    numbers: list[int], raises: bool, batch: bool
) -> None:
    """An AttributeError of headrace, for example, is never raised."""
    picks, consumer = Picks(numbers), make_consumer()
    error, result = (picks.error(), None) if raises else (None, picks.result())
    with suppress(Panic, TypeError, ValueError, OverflowError):
        told, _ = meant("1-0", error, result, batch=batch)
        if told is not None:
            judge(Retry(), make_held(consumer), told, 1.0, consumer.default_wait)


# -- entries and messages of anybody ---------------------------------------------------------------

VALUES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [b"", b"0", b"-1", b"9" * 400, b"1e9", b"\xff", b"nan", b"k", b"headrace:{f}:run:1-0"]
    ),
)
NAMES = st.sampled_from(
    [b"data", b"id", b"attempt", b"enq", b"reason", b"kind", b"traceparent", b"headrace-flow"]
)
FIELDS = st.lists(st.tuples(st.one_of(NAMES, VALUES), VALUES), max_size=6).map(
    lambda pairs: [value for pair in pairs for value in pair]
)
MESSAGES = st.one_of(
    st.binary(max_size=30), st.sampled_from([b"*", b"1-0", b"1-0 2-0 late", b"\xff", b" "])
)


def run(
    consumer: Consumer, rows: list[Any], fresh: list[Any], messages: list[bytes], picks: Picks
) -> list[str]:
    """Lease these entries once, run handlers, and take these messages. Return the entries that were
    settled or lost."""
    ended: list[str] = []
    consumer.note = lambda event, held, *_: (
        ended.append(held.entry) if event == "lease_lost" and held else None
    )
    grants = [[1, -1, rows, fresh, 0, 1000]]

    def answer(op: Any) -> Any:
        match op.name:
            case "lease":
                return op.decode(grants.pop() if grants else [1, -1, [], [], 0, 1000])
            case "flow_events":
                return []
            case "flow_read":
                return [None], None
            case "renew":
                return [picks.of(lambda: True, lambda: False) for _ in op.args[3::2]]
            case _:
                return [True] * max(1, len(op.items))

    def drive(hand: Hand) -> None:
        effect = hand.go()
        while isinstance(effect, Send):
            ended.extend(
                claim.entry for settling in consumer.jobs.under_way for claim in settling.claims
            )
            effect = hand.go([answer(op) for op in effect.ops])

    hand = Hand(fetch(consumer))
    drive(hand)
    drive(Hand(_hear(consumer, messages)))
    while hand.backlog:
        error, result = picks.of(
            lambda: (None, None), lambda: (picks.error(), None), lambda: (None, picks.result())
        )
        hand.run(consumer, 0.1, error, result)
    hand.now += 100.0
    drive(hand)
    return ended


def _hear(consumer: Consumer, messages: list[bytes]) -> Role:
    for message in messages:
        yield from check_named(consumer, message)


@given(
    st.lists(st.tuples(FIELDS, st.integers(0, 1 << 53), st.integers(0, 1 << 53)), max_size=4),
    st.lists(VALUES, max_size=3),
    st.lists(MESSAGES, max_size=3),
    st.lists(st.integers(0, 1 << 30), max_size=20),
)
def test_whatever_entries_and_messages_say_each_job_is_held_lost_or_settled(
    rows: list[tuple[list[bytes], int, int]],
    fresh: list[bytes],
    messages: list[bytes],
    numbers: list[int],
) -> None:
    """Each job is held, lost or settled once."""
    entries = [f"{n}-0" for n in range(1, len(rows) + len(fresh) + 1)]
    taken = [[entry.encode(), *row] for entry, row in zip(entries, rows, strict=False)]
    names = entries[len(rows) :]
    pairs = [
        value
        for entry, payload in zip(names, fresh, strict=True)
        for value in (entry.encode(), payload)
    ]
    for consumer, _ in consumers(1):
        consumer.jobs.held.clear()
        consumer.registration.registered = consumer.registration.declared = True
        ended = run(consumer, taken, pairs, messages, Picks(numbers.copy()))
        assert sorted([*ended, *consumer.jobs.held]) == sorted(entries)
