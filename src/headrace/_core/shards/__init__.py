"""Sharded queues. Here is which shard has a job, and the verbs that act on all shards."""
