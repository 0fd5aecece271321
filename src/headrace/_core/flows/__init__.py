"""The calls of flows, and the consumer of a stage."""
