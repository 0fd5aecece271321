"""The board, the alerts and the scaler ask for metrics and labels that a worker exports, and for no
others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider

from headrace._telemetry.metrics import STATE, Instruments
from headrace._telemetry.tracing import ERROR
from tests.support.facts import each

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
NAME = re.compile(r"\b((?:headrace|messaging)_\w+)")
BOARD = json.loads((HOW_TO / "grafana.json").read_text("utf-8"))
LABELS = {
    "headrace_job_state": STATE, "messaging_destination_name": "messaging.destination.name", "error_type": ERROR,
    "messaging_operation_name": "messaging.operation.name", "server_address": "server.address",
}  # fmt: skip


@pytest.fixture(scope="module")
def exported() -> Iterator[set[str]]:
    """Return the Prometheus names of every instrument."""
    reader = PrometheusMetricReader()
    provider = MeterProvider([reader])
    made = Instruments(provider)
    for instrument in (*vars(made).values(), made.waited.jobs, made.waited.rows):
        if hasattr(instrument, "record"):
            instrument.record(1)
        elif hasattr(instrument, "add"):
            instrument.add(1)
    text = prometheus_client.generate_latest().decode()
    yield {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")} | {
        # gauges, of workers only: tests/tracing shows them
        "headrace_queue_jobs", "headrace_queue_oldest_seconds",
    }  # fmt: skip
    provider.shutdown()


def queries() -> Iterator[str]:
    for panel in BOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield BOARD["templating"]["list"][1]["query"]
    for page in ("grafana.md", "containers.md"):
        yield from re.findall(
            r"^ *(?:expr|query): (.*)$", (HOW_TO / page).read_text("utf-8"), re.MULTILINE
        )


@each("query", sorted(set(queries())))
def test_a_query_asks_for_what_there_is(query: str, exported: set[str]) -> None:
    asked = set(NAME.findall(query)) - LABELS.keys()
    assert asked
    assert asked <= exported


def test_labels_are_those_of_the_metrics_page() -> None:
    page = (HOW_TO.parent / "reference" / "spans-and-metrics.md").read_text("utf-8")
    used = {
        name
        for query in queries()
        for by in re.findall(r"by \(([^)]*)\)", query)
        for name in by.split(", ")
    }
    assert used - {"le"} <= LABELS.keys()
    assert all(f"`{name}`" in page or f"`{name}`," in page for name in LABELS.values())


def test_panels_do_not_overlap() -> None:
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]}
    assert len(places) == len(BOARD["panels"]) == 9
