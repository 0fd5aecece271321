"""Flows: their calls, and the consumer of a stage."""
