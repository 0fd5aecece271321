-- renew: renew leases from now on. Only the present holder may do so.
-- KEYS   lane (string), jobs (stream), leases (zset), workers (zset)
-- ARGV   call, worker, duration, ttl int, items...
-- REPLY  one per job: 1 the lease is still this worker's · 0 it is lost
-- COST   2 us per job
-- duration: ms, '' for the worker's own. ttl: as in lease. Items: entry, delivery count. At most 1,000 jobs.
-- @include clock
-- @include held_by
-- @include number
-- @include record
if duration ~= '' then whole(duration) end
local known = recorded()
if known then return known end
local entries, counts, kept, reply = {}, {}, {}, {}
for i = items, #ARGV, 2 do entries[#entries + 1], counts[#counts + 1] = ARGV[i], ARGV[i + 1] end
local mine, now = held_by(jobs, worker, entries, counts), clock()
for i = 1, #entries do
  reply[i] = mine[i] and 1 or 0
  if mine[i] then kept[#kept + 1] = entries[i] end
end
if #kept > 0 then
  kept[#kept + 1] = 'JUSTID' -- a renewal is no delivery
  redis.call('XCLAIM', jobs, 'workers', worker, 0, unpack(kept))
  kept[#kept] = nil
  if duration ~= '' then
    for i = 1, #kept do redis.call('ZADD', leases, string.format('%.0f', now + tonumber(duration)), kept[i]) end
  elseif redis.call('EXISTS', leases) == 1 then
    redis.call('ZREM', leases, unpack(kept))
  end
  local deadline = ttl > 0 and tonumber(redis.call('ZSCORE', workers, worker) or 0) or 0
  if deadline > 0 and deadline < now + ttl then redis.call('ZADD', workers, string.format('%.0f', now + ttl), worker) end
end
return answer(reply)
