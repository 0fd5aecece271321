-- pause_schedule: pause a schedule, or resume it.
-- KEYS   lane (string), wake (stream)
-- ARGV   call, name, paused flag
-- REPLY  1 done · 0 no schedule of that name, or it is in that state already
-- COST   6 us
-- The next tick of a paused schedule is 2 * 10^14 ms later, so that it never comes, for workers of any version. So the
-- ticks of the pause are missed ticks: the schedule's policy decides about them when it is resumed.
require_sorted_sets(ticks)
require_streams(wake)
local due = tonumber(redis.call('ZSCORE', ticks, name) or 1e14)
if due >= 1e14 and due < 2e14 or is_paused_tick(due) == paused then return answer(0) end -- none, or it moves to another shard
redis.call('ZREM', ticks, name) -- a full server permits it, and then all later writes
redis.call('ZADD', ticks, string.format('%.0f', paused and due + 2e14 or due - 2e14), name)
if not paused and redis.call('ZRANK', ticks, name) == 0 then wake_one(wake) end
return answer(1)
