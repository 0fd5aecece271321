-- fail_worker: declare a worker dead by hand: what it holds goes to the front. It is told so.
-- KEYS   lane (string), jobs (stream), wake (stream), workers (zset), registered (hash), leases (zset), stats (hash), control (channel), events (channel)
-- ARGV   call, name, limit
-- REPLY  {moved, more}: more 1 = call again
-- COST   10 us + 1 us per worker + 1.5 us per job moved
-- name: a registration, `<name>.<random>`, or what stands before its last dot; or any consumer of the group.
-- @include record
-- @include typed
-- @include wake
-- @include levels
-- @include park
-- @include bereave
-- @include fields
-- @include named
-- @include tell
-- @include warn
local lane, jobs, wake_stream, workers, registered, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local stats, control, events = KEYS[7], KEYS[8], KEYS[9]
local name, limit = ARGV[2], tonumber(ARGV[3])
local known = recorded()
if known then return known end
local summary = redis.pcall('XPENDING', jobs, 'workers')
if summary.err and not string.find(summary.err, 'NOGROUP', 1, true) then return summary end
typed('XLEN', wake_stream)
typed('HLEN', registered)
typed('ZCARD', workers, leases)
local heard = ears(stats, events, 'reclaimed')
redis.call('ZREM', workers, '') -- permitted on a full server, and then so is the rest
local failed, moved, more = {}, 0, 0
for _, worker in ipairs(redis.call('ZRANGE', workers, 0, -1)) do
  if worker == name or string.match(worker, '^(.*)%.[^.]*$') == name then
    redis.call('ZADD', workers, 0, worker) -- from here on it is told so, however many calls the rest takes
    failed[#failed + 1] = worker
  end
end
if #failed == 0 and not summary.err then
  for _, consumer in ipairs(summary[4] or {}) do
    if consumer[1] == name then failed[1] = name end
  end
end
for _, worker in ipairs(failed) do
  if summary.err then
    redis.call('ZREM', workers, worker)
    redis.call('HDEL', registered, worker)
  elseif moved < limit then
    local number, entries = bereave(jobs, workers, registered, leases, stats, worker, limit - moved)
    moved = moved + number
    warn(control, table.concat(entries, ' '))
    if heard.reclaimed then tell(events, 'reclaimed', named(jobs, entries), worker) end
  end
  if not summary.err and redis.call('XPENDING', jobs, 'workers', '-', '+', 1, worker)[1] then more = 1 end
end
wake(wake_stream, moved)
return answer({moved, more})
