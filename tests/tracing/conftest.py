"""An SDK of OpenTelemetry for a test, which shows recorded spans as trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from headrace._telemetry import worker
from tests.conftest import newest_queue
from tests.support.awaiting import until

queue = newest_queue


class Spans(InMemorySpanExporter):
    def __init__(self, sampler: Sampler | None = None) -> None:
        super().__init__()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self))

    @property
    def all(self) -> Sequence[ReadableSpan]:
        """All spans in the order in which they ended."""
        return self.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def wait(self, number: int, name: str) -> list[ReadableSpan]:
        """Until there are so many of a name."""
        until(
            lambda: len(self.named(name)) >= number,
            f"{number} spans {name!r} among {[s.name for s in self.all]}",
        )
        return self.named(name)

    def tree(self) -> list[str]:
        """Return each span as `name KIND < parent ~ linked, linked`, sorted. A foreign parent or
        link is `?`."""
        names = {span.context.span_id: span.name for span in self.all}
        lines: list[str] = []
        for span in self.all:
            line = f"{span.name} {span.kind.name}"
            if span.parent is not None:
                line += f" < {names.get(span.parent.span_id, '?')}"
            if span.links:
                line += " ~ " + ", ".join(
                    sorted(names.get(link.context.span_id, "?") for link in span.links)
                )
            lines.append(line)
        return sorted(lines)


@pytest.fixture
def sampler() -> Sampler | None:
    return None


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch, sampler: Sampler | None) -> Spans:
    """An SDK that records spans, as if a program had set it."""
    spans = Spans(sampler)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
    return spans


class Points(InMemoryMetricReader):
    def __init__(self) -> None:
        super().__init__()
        self.provider = MeterProvider([self], shutdown_on_exit=False)

    @property
    def _instruments(self) -> list[Any]:
        data = self.get_metrics_data()
        scopes = (
            [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
            if data
            else []
        )
        return [metric for scope in scopes for metric in scope.metrics]

    def read(self, name: str, **wanted: object) -> list[Any]:
        """Return the points of an instrument whose attributes end in these names and have these
        values."""

        def has(point: Any, last: str, given: object) -> bool:
            ending = last.replace("_", ".")
            return any(
                key.endswith(ending) and value == given for key, value in point.attributes.items()
            )

        points = [
            point
            for metric in self._instruments
            if metric.name == name
            for point in metric.data.data_points
        ]
        return [point for point in points if all(has(point, *pair) for pair in wanted.items())]

    def names(self) -> dict[str, str]:
        """Return the units of all instruments that have points."""
        return {metric.name: metric.unit for metric in self._instruments}

    def value(self, name: str, **wanted: object) -> float:
        """The sum of a counter, the count of a histogram, or the only value of a gauge."""
        return sum(
            getattr(point, "count", None) or getattr(point, "value", 0)
            for point in self.read(name, **wanted)
        )


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Iterator[Points]:
    """An SDK that measures, and often."""
    points = Points()
    monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", points.provider)
    monkeypatch.setattr(worker, "GAUGE_EVERY_S", 0.3)
    yield points
    points.provider.shutdown()
