-- take_schedule: take over a schedule from another shard, as that has told it.
-- KEYS   wake (stream), schedules (hash), ticks (zset)
-- ARGV   name, due int, schedule
-- REPLY  1 it was taken over · 0 there is one of that name
-- COST   6 us
-- @include number
-- @include require_types
-- @include wake_one
require_types('ZCARD', ticks)
require_types('XLEN', wake)
if redis.call('HEXISTS', schedules, name) == 1 then return 0 end
redis.call('HSET', schedules, name, schedule)
redis.call('ZADD', ticks, string.format('%.0f', due), name)
if redis.call('ZRANK', ticks, name) == 0 then wake_one(wake) end
return 1
