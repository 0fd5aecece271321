"""Sharded queues: which shard has a job, and the verbs on all shards."""
