"""The steps of runs, which survive their worker, as generators of effects."""
