-- paused: ask whether the queue is paused.
-- KEYS   stats (hash)
-- ARGV   (none)
-- REPLY  1 paused · 0 not
-- COST   2 us
return redis.call('HEXISTS', stats, 'paused')
