-- cancel: remove a job by id, waiting, parked, leased, delayed or blocked. Its holder finds its lease lost.
-- KEYS   lane (string), jobs (stream), ids (hash), leases (zset), released (hash), delayed (zset), bodies (hash), blocked (hash), stats (hash), control (channel), events (channel), flows (zset), levels...
-- ARGV   call, id
-- REPLY  1 cancelled · 0 no such job
-- COST   10 us
-- @include record
-- @include typed
-- @include levels
-- @include unnamed
-- @include tell
-- @include warn
-- @include take
local lane, jobs, ids, leases, released, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local bodies, blocked, stats, control, events, flows = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local id = ARGV[2]
local known = recorded()
if known then return known end
local levels = behind(stats, 13)
typed('XLEN', jobs)
typed('HLEN', ids, released, bodies, blocked)
typed('ZCARD', leases, delayed, flows)
local heard = ears(stats, events, 'cancelled')
local gone, held = take({
  jobs = jobs, ids = ids, leases = leases, released = released, delayed = delayed, bodies = bodies, blocked = blocked,
  stats = stats, levels = levels,
}, id)
if held then warn(control, held) end
if gone > 0 then redis.call('ZADD', flows, 'XX', 3, id) end
if heard.cancelled and gone == 1 then tell(events, 'cancelled', {id}) end
return answer(gone)
