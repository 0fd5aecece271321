-- schedules: what recurs, the next due first.
-- KEYS   schedules (hash), ticks (zset)
-- ARGV   which
-- REPLY  {now, next, rows}: next ms until a tick that is not due yet is, or -1 · rows {name, due, timing, missed}...
-- COST   5 us + 2 us per schedule, at most 1,000
-- which: 'all'; 'due', those with a tick that is; or 'none'.
-- @include clock
-- @include scheduled
local now, names, rows = clock(), {}, {}
local moment = string.format('%.0f', now)
if which == 'all' then names = redis.call('ZRANGE', ticks, 0, 999, 'WITHSCORES') end
if which == 'due' then names = redis.call('ZRANGEBYSCORE', ticks, '-inf', moment, 'WITHSCORES', 'LIMIT', 0, 1000) end
for i = 1, #names, 2 do
  local kept = redis.call('HGET', schedules, names[i])
  if kept then
    local timing, missed = scheduled(kept)
    rows[#rows + 1] = {names[i], tonumber(names[i + 1]), timing or kept, missed or ''}
  end
end
local later = redis.call('ZRANGEBYSCORE', ticks, '(' .. moment, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
return {now, later and tonumber(later) - now or -1, rows}
