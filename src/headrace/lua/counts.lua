-- counts: how many jobs are in each state, and what became of the others, at one instant.
-- KEYS   jobs (stream), delayed (zset), blocked (hash), dead (stream), stats (hash), levels...
-- ARGV   (none)
-- REPLY  {waiting, parked, leased, delayed, blocked, dead, enqueued, completed, cancelled, deleted, dead_trimmed}
-- COST   10 us + 0.1 us per consumer
-- Entries that foreign producers added with a bare XADD count as enqueued on 7.0 and later, whose streams count
-- what was ever added; 6.2 does not, and there the law of conservation misses them.
-- @include levels
-- @include added
local jobs, delayed, blocked, dead, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local levels = behind(stats, 6)
local pending, parked, bell, limited, behind_first = 0, 0, 0, 0, 0
local length = redis.call('XLEN', jobs)
for _, stream in ipairs(levels) do behind_first = behind_first + redis.call('XLEN', stream) end
local summary = redis.pcall('XPENDING', jobs, 'workers')
if not summary.err then
  pending = summary[1]
  for _, consumer in ipairs(summary[4] or {}) do
    if consumer[1] == 'parked' or string.sub(consumer[1], 1, 7) == 'parked:' then parked = parked + consumer[2] end
    if consumer[1] == 'bell' then bell = tonumber(consumer[2]) end
    if consumer[1] == 'limited' then limited = tonumber(consumer[2]) end
  end
end
local numbers = redis.call('HMGET', stats, 'enqueued', 'completed', 'cancelled', 'deleted', 'dead_trimmed', 'added')
for i = 1, 6 do numbers[i] = tonumber(numbers[i] or 0) end
numbers[1] = numbers[1] + math.max(0, (ever_added(jobs, levels) or 0) - numbers[6])
local waiting, leased = length - pending + bell, pending - parked - bell - limited
if waiting < 0 then -- leased or parked entries that somebody removed by XDEL are in no state any more
  waiting, leased = 0, leased + waiting
  if leased < 0 then parked, leased = parked + leased, 0 end
end
return {waiting + behind_first, parked, leased, redis.call('ZCARD', delayed) + limited, redis.call('HLEN', blocked), redis.call('XLEN', dead),
        numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]}
