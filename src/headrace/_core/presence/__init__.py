"""The presence of a worker: the facts that it reports, and what operators ask of it."""
