-- handing: count the jobs in a shard's outbox, which are on their way to other shards.
-- KEYS   (none)
-- ARGV   (none)
-- REPLY  their number
-- COST   3 us
-- @feature transfers
return redis.call('HLEN', outbox)
