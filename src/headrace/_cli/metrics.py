"""`headrace work --metrics-port`: OpenTelemetry's metrics of a process, as Prometheus reads them."""

from __future__ import annotations

from typing import Any

from headrace._cli.console import say
from headrace._net.base.children import withhold_socket
from headrace.errors import ConfigurationError, without_extra


def serve(port: int) -> None:
    """Serve `/metrics` on *port* (0: any) of all interfaces, until the process ends. Raises `ConfigurationError`."""
    try:
        import prometheus_client
        from opentelemetry import metrics
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
    except ModuleNotFoundError:
        raise ConfigurationError(without_extra("--metrics-port", "metrics")) from None
    if isinstance(metrics.get_meter_provider(), MeterProvider):
        raise ConfigurationError("--metrics-port: the application has set up metrics itself, leave it to that")
    start: Any = prometheus_client.start_http_server
    try:
        server, _ = start(port)
    except OSError as error:
        raise ConfigurationError(f"--metrics-port {port}: {error.strerror}") from None
    withhold_socket(server.socket)
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    say(f"metrics are served on port {server.server_port}")
