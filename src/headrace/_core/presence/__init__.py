"""The presence of a worker: the facts that it reports, and the requests of operators."""
