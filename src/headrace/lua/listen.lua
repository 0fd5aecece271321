-- listen: announce a listener to events; sent again every few seconds. Scripts look for listeners only then.
-- KEYS   stats (hash)
-- ARGV   sharded flag
-- REPLY  1
-- COST   3 us
-- sharded: 1 with SSUBSCRIBE, as on a cluster; 0 with SUBSCRIBE. Subscribe first. `reclaim` withdraws the announcement
-- when no subscribers are left.
local how = (sharded or redis.call('HGET', stats, 'listening') == '2') and '2' or '1' -- 2: there may be listeners of both kinds
redis.call('HDEL', stats, 'listening') -- a full server permits it, and then all later writes
redis.call('HSET', stats, 'listening', how)
return 1
