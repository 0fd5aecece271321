-- handing: count the jobs in a shard's outbox, which are on their way to other shards.
-- KEYS   (none)
-- ARGV   (none)
-- REPLY  their number
-- COST   3 us
return redis.call('HLEN', outbox)
