-- inherit: take over a queue's declaration, and whether it is paused, from older shards. Only the first call counts.
-- KEYS   stats (hash)
-- ARGV   items...
-- REPLY  1 it was the first time · 0 nothing was changed
-- COST   3 us
-- Items: fields of the stats and their values, from `seal`. Existing values stay.
redis.call('HDEL', stats, '') -- a full server permits it, and then all later writes
if redis.call('HSETNX', stats, 'heir', 1) == 0 then return 0 end
for i = items, #ARGV - 1, 2 do redis.call('HSETNX', stats, ARGV[i], ARGV[i + 1]) end
return 1
