-- expire: leases end now, as if their time were over: their jobs go to the front, the attempt spent.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), leases (zset), stats (hash), control (channel), events (channel)
-- ARGV   call, cursor, limit, wanted...
-- REPLY  {moved, cursor}: cursor '' when that was all, '-' from the start
-- COST   1.5 us per job moved + 0.5 us per pending entry looked at, at most `limit`
-- wanted: ids of the jobs, at most 1,000; none for all leases. Their holders are told.
-- @include record
-- @include typed
-- @include wake
-- @include levels
-- @include unnamed
-- @include park
-- @include nobody
-- @include fields
-- @include named
-- @include tell
-- @include warn
local lane, jobs, wake_stream, ids, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local stats, control, events = KEYS[6], KEYS[7], KEYS[8]
local cursor, limit = ARGV[2], tonumber(ARGV[3])
local q = {jobs = jobs, levels = {}} -- what waits at another level is leased by nobody
local known = recorded()
if known then return known end
typed('XLEN', jobs, wake_stream)
typed('HLEN', ids)
typed('ZCARD', leases)
local heard = ears(stats, events, 'reclaimed')
local rows, next_cursor = {}, ''
if #ARGV == 3 then
  rows = redis.pcall('XPENDING', jobs, 'workers', cursor, '+', limit) -- an error has no rows: no group yet
  if #rows == limit then next_cursor = '(' .. rows[#rows][1] end
end
for i = 4, #ARGV do
  local entry = redis.call('HGET', ids, ARGV[i]) or unnamed(q, ARGV[i]) and ARGV[i]
  local there = entry and entry ~= 'delayed' and entry ~= 'blocked'
  if there then rows[#rows + 1] = redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1] end
end
local expired = {}
for i = 1, #rows do
  if not nobody(rows[i][2]) then expired[#expired + 1] = rows[i][1] end
end
park(jobs, leases, stats, expired)
warn(control, table.concat(expired, ' '))
if heard.reclaimed then tell(events, 'reclaimed', named(jobs, expired)) end
wake(wake_stream, #expired)
return answer({#expired, next_cursor})
