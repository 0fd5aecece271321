-- cancel: remove a job by id, waiting, parked, leased, delayed or blocked. Its holder finds its lease lost.
-- KEYS   lane (string), jobs (stream), ids (hash), leases (zset), released (hash), delayed (zset), bodies (hash), blocked (hash), stats (hash), flows (zset)
-- ARGV   call, id
-- REPLY  1 cancelled · 0 no such job
-- COST   10 us
-- @include record
-- @include typed
-- @include unnamed
-- @include take
local lane, jobs, ids, leases, released, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local bodies, blocked, stats, flows = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local id = ARGV[2]
local known = recorded()
if known then return known end
typed('XLEN', jobs)
typed('HLEN', ids, released, bodies, blocked, stats)
typed('ZCARD', leases, delayed, flows)
local gone = take({
  jobs = jobs, ids = ids, leases = leases, released = released, delayed = delayed, bodies = bodies, blocked = blocked,
  stats = stats,
}, id)
if gone == 1 then redis.call('ZADD', flows, 'XX', 3, id) end
return answer(gone)
