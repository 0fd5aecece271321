-- schedules: list schedules, the next due first.
-- KEYS   (none)
-- ARGV   which, cursor
-- REPLY  {now, next, rows, cursor}: next: ms until the next future tick, or -1 · rows {name, due, timing, missed, last,
--        fields}... · cursor: where to continue, '' at the end
-- COST   5 us + 4 us per schedule, at most 500, or 1 MiB of their jobs
-- which: 'all'; 'due' for schedules with a due tick; 'one' for the schedule that cursor names; or 'none'. cursor: '' at
-- first. last: '<ms> <id>' of the last job that it enqueued, or ''. fields: of its jobs, of 'one' only. due: 2 * 10^14
-- more if it is paused.
local now, names, rows, budget = clock(), {}, {}, new_budget()
local moment = string.format('%.0f', now)
-- The cursor of a list is the last listed schedule, 'due name': it may have moved, or ended, since.
local due, last = string.match(which ~= 'one' and cursor or '', '^(%S+) (.*)$')
local rank = due and redis.call('ZSCORE', ticks, last) == due and redis.call('ZRANK', ticks, last)
local from = rank and rank + 1 or due and redis.call('ZCOUNT', ticks, '-inf', '(' .. due) or 0
if which == 'all' then names = redis.call('ZRANGE', ticks, from, from + 499, 'WITHSCORES') end
if which == 'due' then names = redis.call('ZRANGEBYSCORE', ticks, '-inf', moment, 'WITHSCORES', 'LIMIT', from, 500) end
if which == 'one' then names = {cursor, redis.call('ZSCORE', ticks, cursor) or nil} end
local shown = #names == 1000 and #names or nil
for i = 1, #names - 1, 2 do
  local kept = value_of(budget, schedules, names[i])
  if kept == false then
    shown = i - 1
    break
  end
  if kept then
    local timing, missed, job, last = scheduled(kept)
    rows[#rows + 1] = {names[i], tonumber(names[i + 1]), timing or kept, missed or '', last or '', which == 'one' and job or nil}
  end
end
local later = redis.call('ZRANGEBYSCORE', ticks, '(' .. moment, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
return {now, later and tonumber(later) - now or -1, rows, shown and names[shown] .. ' ' .. names[shown - 1] or ''}
