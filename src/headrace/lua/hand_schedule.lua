-- hand_schedule: suspend a schedule that another shard takes over, and return it.
-- KEYS   (none)
-- ARGV   name
-- REPLY  {due, schedule, set...}: ms of its next tick, its stored data, and the sets of declared schedules that contain
--        it; empty, if there is no such schedule
-- COST   5 us + 2 us per set that workers have declared here
-- The next tick of a suspended schedule is 10^14 ms later, so it never comes here. `take_schedule` in the other shard
-- and `unschedule` here follow. A paused schedule (see pause_schedule) stays paused there.
local kept, due = redis.call('HGET', schedules, name), tonumber(redis.call('ZSCORE', ticks, name) or 0)
if not kept then return {} end
if due < 1e14 or due >= 2e14 and due < 3e14 then
  redis.call('ZREM', ticks, name) -- a full server permits it, and then all later writes
  redis.call('ZADD', ticks, string.format('%.0f', due + 1e14), name)
else
  due = due - 1e14
end
local reply, rows = {string.format('%.0f', due), kept}, redis.pcall('HGETALL', recurring)
for i = 1, #rows, 2 do
  local its = string.sub(rows[i], 1, 1) == '=' and strings_of(rows[i + 1]) or {}
  for j = 1, #its do
    if its[j] == name then reply[#reply + 1] = string.sub(rows[i], 2) end
  end
end
return reply
