-- inherit: take over how a queue is declared, and whether it is paused, from the shards before this one: once.
-- KEYS   stats (hash)
-- ARGV   items...
-- REPLY  1 it was the first time · 0 nothing was changed
-- COST   3 us
-- Items: fields of the stats and their values, as `seal` told them; what is known here is left as it is.
redis.call('HDEL', stats, '') -- a full server permits it, and then what follows
if redis.call('HSETNX', stats, 'heir', 1) == 0 then return 0 end
for i = items, #ARGV - 1, 2 do redis.call('HSETNX', stats, ARGV[i], ARGV[i + 1]) end
return 1
