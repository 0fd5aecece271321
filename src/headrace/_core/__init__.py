"""What is decided: calls of several round trips, and a worker's roles, as generators of effects. No IO, no clock."""
