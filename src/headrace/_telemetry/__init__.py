"""Spans, metrics and log events, by OpenTelemetry's API alone."""
