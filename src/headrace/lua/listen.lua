-- listen: announce a listener to events; sent again every few seconds. Scripts look for listeners only then.
-- KEYS   stats (hash)
-- ARGV   (none)
-- REPLY  1
-- COST   3 us
-- Subscribe first. `reclaim` takes it back when there are no subscribers any more.
redis.call('HDEL', stats, 'heard') -- a full server permits it, and then what follows
redis.call('HSET', stats, 'heard', '1')
return 1
