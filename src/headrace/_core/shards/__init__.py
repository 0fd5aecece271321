"""Sharded queues. The package finds the shard that has a job, and has the calls that act on all
shards."""
