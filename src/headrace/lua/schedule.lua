-- schedule: make a job recur, or replace the schedule of that name.
-- KEYS   lane (string), wake (stream)
-- ARGV   call, name, timing, missed, due, limit int, fields...
-- REPLY  1 new · 0 replaced · -1 the queue has `limit` schedules already
-- COST   10 us
-- timing: 'every <ms>' or 'cron <zone> <expression>'. missed: skip, once or all. due: ms of the first tick; if a
-- schedule of this name has this timing already, its next tick stays. fields: `data` and headers of its jobs. A paused
-- schedule stays paused, and its last run stays known.
whole(due)
require_sorted_sets(ticks)
require_streams(wake)
local old = redis.call('HGET', schedules, name)
if not old and redis.call('HLEN', schedules) >= limit then return answer(-1) end
local old_timing, _, _, last = scheduled(old or '')
redis.call('HSET', schedules, name, cmsgpack.pack({timing, missed, {unpack(ARGV, fields)}, last}))
local next = tonumber(redis.call('ZSCORE', ticks, name) or -1)
if old_timing ~= timing or next < 0 then
  redis.call('ZADD', ticks, is_paused_tick(next) and string.format('%.0f', due + 2e14) or due, name)
  if redis.call('ZRANK', ticks, name) == 0 then wake_one(wake) end
end
return answer(old and 0 or 1)
