-- hand_schedule: hold back a schedule that another shard takes over, and tell it.
-- KEYS   schedules (hash), ticks (zset)
-- ARGV   name
-- REPLY  {due, schedule}: ms of its next tick, and what is kept of it; none, if there is no such schedule
-- COST   5 us
-- What is held back has its next tick 10^14 ms later, so that it has none here. `take_schedule` there, and `unschedule`
-- here, follow.
local kept, due = redis.call('HGET', schedules, name), tonumber(redis.call('ZSCORE', ticks, name) or 0)
if not kept then return {} end
if due < 1e14 then
  redis.call('ZREM', ticks, name) -- a full server permits it, and then what follows
  redis.call('ZADD', ticks, string.format('%.0f', due + 1e14), name)
else
  due = due - 1e14
end
return {string.format('%.0f', due), kept}
