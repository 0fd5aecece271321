-- leave: a worker goes: what it still holds goes to the front untouched, and nothing of it stays behind.
-- KEYS   jobs (stream), wake (stream), workers (zset), registered (hash), leases (zset), released (hash), stats (hash), events (channel)
-- ARGV   worker, limit
-- REPLY  {released, more}: more 1 = call again
-- COST   10 us + 3 us per job released
-- @include typed
-- @include wake
-- @include levels
-- @include park
-- @include fields
-- @include named
-- @include tell
local jobs, wake_stream, workers, registered = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local leases, released, stats, events = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local worker, limit = ARGV[1], tonumber(ARGV[2])
local held = redis.pcall('XPENDING', jobs, 'workers', '-', '+', limit, worker)
if held.err and not string.find(held.err, 'NOGROUP', 1, true) then return held end
typed('XLEN', wake_stream)
typed('ZCARD', workers, leases)
typed('HLEN', registered, released)
local heard = ears(stats, events, 'released')
local entries = {}
for i = 1, #held do entries[i] = held[i][1] end
park(jobs, leases, stats, entries)
for i = 1, #entries do redis.call('HINCRBY', released, entries[i], 1) end
if heard.released then tell(events, 'released', named(jobs, entries), worker) end
if #held == limit then
  wake(wake_stream, #entries)
  return {#entries, 1}
end
local left = not held.err and redis.call('XPENDING', jobs, 'workers', '-', '+', limit, worker) or {}
for i = 1, #left do redis.call('XACK', jobs, 'workers', left[i][1]) end -- 6.2: removed by XDEL by hand
if not held.err then
  redis.call('XGROUP', 'DELCONSUMER', jobs, 'workers', worker)
  -- A job may have rung for us just now; somebody else must come for it.
  wake(wake_stream, #entries + #redis.call('XPENDING', jobs, 'workers', '-', '+', 8, 'bell'))
end
redis.call('ZREM', workers, worker)
redis.call('HDEL', registered, worker)
return {#entries, 0}
