"""The presence of a worker. The worker reports facts, and operators send it requests."""
