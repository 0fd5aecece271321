"""The verbs of a queue of one or more shards, as generators of effects. Each feature has a file."""
