-- company: record whether the process of a worker may run jobs of other queues or shards beside jobs of this one.
-- KEYS   registered (hash)
-- ARGV   worker, beside flag
-- REPLY  1 noted · 0 it is not registered
-- COST   5 us
-- beside: 1 = it may; if the worker then dies, no job that it held here was alone. 0 = it runs no other jobs until the
-- next call with 1; the worker holds one job here.
redis.call('HDEL', registered, '') -- a full server permits it, and then all later writes
local known = redis.call('HGET', registered, worker)
if not known then return 0 end
if string.sub(known, -7) == ' beside' then known = string.sub(known, 1, -8) end
redis.call('HSET', registered, worker, known .. (beside and ' beside' or ''))
return 1
