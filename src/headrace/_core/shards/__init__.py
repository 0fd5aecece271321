"""Queues with several shards: which shard has a job, and the verbs over all of them."""
