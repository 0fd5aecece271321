"""Steps: runs that survive their worker, as generators of effects."""
