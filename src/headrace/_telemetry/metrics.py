"""Instruments by OpenTelemetry's conventions for messaging, and more for operators.

Attributes are queues, operations, states and classes of errors. They have no ids and no names of
workers. The role `measure` of a worker reads the counts of a queue. A collection returns the last
counts, so it never waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from attrs import frozen
from opentelemetry import metrics
from opentelemetry.environment_variables import OTEL_PYTHON_METER_PROVIDER
from opentelemetry.metrics import CallbackOptions, NoOpMeter, NoOpMeterProvider, Observation

from headrace import _forks
from headrace._model.state import Counts
from headrace._model.terms import Share
from headrace._model.views.outbox import OutboxView
from headrace._telemetry.tracing import (
    ERROR,
    SCHEMA,
    SCOPE,
    Place,
    ProviderCache,
    Value,
    error_type,
)

# the conventions'
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
WAITS = (0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
SIZES = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)
ATTEMPTS = (1, 2, 3, 4, 5, 7, 10, 15, 25, 50, 100)
STATE = "headrace.job.state"
VALUE = "headrace.share.value"
QUANTILE = "headrace.share.quantile"
OTHERS = "(others)"  # all values but the busiest
STATES = ("waiting", "parked", "leased", "delayed", "blocked", "dead")


@frozen
class Waits:
    """The histograms of how long jobs wait for a worker, and an outbox's rows for a relay."""

    jobs: Any
    rows: Any


@frozen
class Isolated:
    killed: Any
    recycled: Any
    start: Any


class Instruments:
    def __init__(self, provider: Any) -> None:
        meter = provider.get_meter(SCOPE, version("headrace"), SCHEMA)
        self.nothing = isinstance(meter, NoOpMeter)

        def histogram(name: str, unit: str, about: str, buckets: tuple[float, ...]) -> Any:
            return meter.create_histogram(
                name, unit, about, explicit_bucket_boundaries_advisory=buckets
            )

        self.duration = histogram(
            "messaging.client.operation.duration",
            "s",
            (
                "Duration of a call (send, receive if it got something, settlements), by "
                "operation, group and error.type."
            ),
            SECONDS,
        )
        self.process = histogram(
            "messaging.process.duration",
            "s",
            "Duration of a handler's run, by operation, group and error.type.",
            SECONDS,
        )
        self.sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Jobs sent, by operation and error.type."
        )
        self.consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Jobs handed out, by operation and group.",
        )
        self.waited = Waits(
            histogram(
                "headrace.job.wait",
                "s",
                "From a job's enqueue to its first delivery, both by the server's clock.",
                WAITS,
            ),
            histogram(
                "headrace.outbox.lag", "s", "From the writing of an outbox's row to its job.", WAITS
            ),
        )
        self.attempts = histogram(
            "headrace.job.attempts",
            "{attempt}",
            "Attempts until a job was completed, or dead.",
            ATTEMPTS,
        )
        self.batch = histogram(
            "headrace.batch.size",
            "{job}",
            "Jobs of enqueue_many, of polls, and of a batch handler's runs, by operation.",
            SIZES,
        )
        self.reclaimed = meter.create_counter(
            "headrace.jobs.reclaimed",
            "{job}",
            "Jobs taken over by this worker from the dead, or from expired leases.",
        )
        self.retried = meter.create_counter(
            "headrace.jobs.retried", "{job}", "Jobs retried by this worker."
        )
        self.died = meter.create_counter(
            "headrace.jobs.dead_lettered",
            "{job}",
            "Jobs that became dead letters, each once, by the client whose call ended it.",
        )
        self.dropped = meter.create_counter(
            "headrace.results.dropped",
            "{result}",
            "Results that could not be kept; their jobs are complete.",
        )
        self.steps = meter.create_counter(
            "headrace.steps.recorded", "{step}", "Steps that have ended and are recorded."
        )
        self.suspended = meter.create_counter(
            "headrace.runs.suspended",
            "{run}",
            "Times that a run began to sleep, or to wait for a signal.",
        )
        self.lost = meter.create_counter(
            "headrace.leases.lost",
            "{lease}",
            "Leases found lost when they were settled or renewed.",
        )
        self.reconnects = meter.create_counter(
            "headrace.reconnects", "{retry}", "Failed round trips that were tried again, by server."
        )
        self.isolated = Isolated(
            meter.create_counter(
                "headrace.children.killed",
                "{process}",
                "Child processes of isolated handlers that were killed, or died, in a job, by headrace.reason: "
                "deadline, memory, lost, or died.",
            ),
            meter.create_counter(
                "headrace.children.recycled",
                "{process}",
                "Child processes replaced after their jobs, or for their memory.",
            ),
            histogram(
                "headrace.children.start",
                "s",
                "Time that a child process took to start and to import its handler.",
                SECONDS,
            ),
        )
        meter.create_observable_gauge(
            "headrace.queue.jobs",
            [readings.jobs],
            "{job}",
            "Jobs by headrace.job.state: waiting, parked, leased, delayed, blocked, dead.",
        )
        meter.create_observable_gauge(
            "headrace.queue.oldest",
            [readings.oldest],
            "s",
            (
                "Age of the oldest of the next jobs: parked, new, and of each priority level; 0: none waits."
            ),
        )
        meter.create_observable_gauge(
            "headrace.queue.longest_wait",
            [readings.longest_wait],
            "s",
            (
                "Longest wait of a run for its signal, among the 100 oldest that wait for one; 0: none does."
            ),
        )
        meter.create_observable_gauge(
            "headrace.outbox.rows",
            [outboxes.rows],
            "{row}",
            (
                "Rows of an outbox by headrace.job.state (waiting, refused); at most 10,000 are counted."
            ),
        )
        meter.create_observable_gauge(
            "headrace.outbox.oldest",
            [outboxes.age],
            "s",
            "Age of the first row that waits; 0: none does.",
        )
        meter.create_observable_gauge(
            "headrace.share.jobs",
            [readings.share_jobs],
            "{job}",
            (
                "Waiting and leased jobs (headrace.job.state) of the ten busiest values "
                "of a fair queue (headrace.share.value); (others): all others."
            ),
        )
        meter.create_observable_gauge(
            "headrace.share.dwell",
            [readings.share_dwell],
            "s",
            (
                "How long jobs waited, about, by headrace.share.value and headrace.share.quantile (0.5, 0.95)."
            ),
        )

    def call(
        self, place: Place, operation: str, seconds: float, error: BaseException | None = None
    ) -> None:
        self.duration.record(seconds, failing(place.attributes(operation), error))


def failing(attributes: dict[str, Value], error: BaseException | None) -> dict[str, Value]:
    return attributes if error is None else {**attributes, ERROR: error_type(error)}


def _instruments(provider: Any) -> Instruments | None:
    if isinstance(provider, NoOpMeterProvider):
        return None
    made = Instruments(provider)
    return None if made.nothing else made


@frozen
class Reading:
    """The counts of a queue, two ages in seconds, and the shares of its busiest values.

    The ages are of the oldest job that is next, and of the longest wait.
    """

    counts: Counts
    oldest: float
    longest_wait: float
    shares: Sequence[Share] = ()


class Readings:
    """The counts last read of each queue, by any worker of this process."""

    def __init__(self) -> None:
        self._lock = _forks.lock()
        self._read: dict[str, tuple[float, float, Place, Any]] = {}

    def due(self, key: str, place: Place, interval: float) -> bool:
        """Tell whether it is time to read a queue. If so, this caller is the one to do it."""
        now = time.monotonic()
        with self._lock:
            at, _, _, reading = self._read.get(key, (-math.inf, 0.0, place, None))
            if now - at < interval:
                return False
            self._read[key] = now, interval, place, reading
        return True

    def read(self, key: str, reading: Reading | OutboxView) -> None:
        with self._lock:
            row = self._read.get(key)
            if row is not None:  # else it took so long that it is forgotten
                self._read[key] = *row[:3], reading

    def _fresh(self) -> list[tuple[Place, Any]]:
        now = time.monotonic()
        with self._lock:
            for key in [key for key, row in self._read.items() if now - row[0] > 3.0 * row[1]]:
                del self._read[key]  # the worker that read it is gone
            return [(place, reading) for _, _, place, reading in self._read.values() if reading]

    def jobs(self, _options: CallbackOptions) -> Iterable[Observation]:
        for place, reading in self._fresh():
            for state in STATES:
                yield Observation(getattr(reading.counts, state), {**place.common, STATE: state})

    def oldest(self, _options: CallbackOptions) -> Iterable[Observation]:
        """Observe the age of the oldest job that is next. It is 0 if none waits."""
        for place, reading in self._fresh():
            yield Observation(reading.oldest, place.common)

    def longest_wait(self, _options: CallbackOptions) -> Iterable[Observation]:
        """Observe the longest wait for a signal, among the 100 oldest jobs that wait for one. It is
        0 if none does.
        """
        for place, reading in self._fresh():
            yield Observation(reading.longest_wait, place.common)

    def share_jobs(self, _options: CallbackOptions) -> Iterable[Observation]:
        """Observe the waiting and the leased jobs of the busiest values, and of all others
        together.
        """
        for place, reading in self._fresh():
            if reading.shares:
                waiting = (
                    reading.counts.waiting
                    + reading.counts.parked
                    - sum(one.waiting for one in reading.shares)
                )
                leased = reading.counts.leased - sum(one.running for one in reading.shares)
                for one in reading.shares:
                    yield Observation(
                        one.waiting, {**place.common, VALUE: one.name, STATE: "waiting"}
                    )
                    yield Observation(
                        one.running, {**place.common, VALUE: one.name, STATE: "leased"}
                    )
                yield Observation(
                    max(0, waiting), {**place.common, VALUE: OTHERS, STATE: "waiting"}
                )
                yield Observation(max(0, leased), {**place.common, VALUE: OTHERS, STATE: "leased"})

    def share_dwell(self, _options: CallbackOptions) -> Iterable[Observation]:
        """Observe the dwells that half and 95 % of the jobs of the busiest values did not
        exceed."""
        for place, reading in self._fresh():
            for one in reading.shares:
                for quantile, dwell in ((0.5, one.p50), (0.95, one.p95)):
                    if dwell is not None:
                        yield Observation(
                            dwell, {**place.common, VALUE: one.name, QUANTILE: quantile}
                        )


class OutboxReadings(Readings):
    """The rows that wait in the outbox of each queue, as a relay of this process has counted them
    last.
    """

    def rows(self, _options: CallbackOptions) -> Iterable[Observation]:
        for place, view in self._fresh():
            yield Observation(view.rows, {**place.common, STATE: "waiting"})
            yield Observation(view.refused, {**place.common, STATE: "refused"})

    def age(self, _options: CallbackOptions) -> Iterable[Observation]:
        for place, view in self._fresh():
            yield Observation(view.oldest, place.common)


readings = Readings()
outboxes = OutboxReadings()
instruments: ProviderCache[Instruments] = ProviderCache(
    metrics.get_meter_provider, "_METER_PROVIDER", OTEL_PYTHON_METER_PROVIDER, _instruments
)
