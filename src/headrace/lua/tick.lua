-- tick: put in the jobs of one schedule that is due, and say when it is due next. One caller wins each tick.
-- KEYS   jobs (stream), wake (stream), ids (hash), schedules (hash), ticks (zset), stats (hash), events (channel), levels...
-- ARGV   name, timing, due, next, ticks...
-- REPLY  1 done · 0 somebody else did, or the schedule is not what it was
-- COST   10 us + 5 us per tick
-- timing, due: as `schedules` gave them. next: ms of the next tick. ticks: ms of each that has its job now, with the id
-- '<name>@<ms>'; not if that is taken. At most 1,000.
-- @include typed
-- @include levels
-- @include unnamed
-- @include due
-- @include add
-- @include tell
local jobs, wake, ids, schedules, ticks, stats, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local name, timing, due, following = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local q = {jobs = jobs, wake = wake, ids = ids, stats = stats, levels = behind(stats, 8)}
typed('XLEN', jobs, wake)
typed('HLEN', ids)
local kept = redis.call('HGET', schedules, name)
kept = kept and cmsgpack.unpack(kept)
if not kept or kept[1] ~= timing or tonumber(redis.call('ZSCORE', ticks, name) or -1) ~= due then return 0 end
local heard, ids_added = ears(stats, events, 'added'), {}
redis.call('ZREM', ticks, name) -- a full server permits it, and then what follows: or all workers would fail of it
for i = 5, #ARGV do
  local fields, id = {}, name .. '@' .. ARGV[i]
  for j, field in ipairs(kept[3]) do fields[j] = field end
  table.insert(fields, 3, 'id')
  table.insert(fields, 4, id)
  local _, new = add(q, 0, id, '', fields)
  if new == 1 then ids_added[#ids_added + 1] = id end
end
redis.call('ZADD', ticks, following, name)
if heard.added then tell(events, 'added', ids_added) end
return 1
