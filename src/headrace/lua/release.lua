-- release: give jobs back untouched, to the front. No attempt is spent. Only the present holder may.
-- KEYS   lane (string), jobs (stream), wake (stream), leases (zset), released (hash), stats (hash), events (channel)
-- ARGV   call, worker, items...
-- REPLY  one per job: 1 released · 0 not this worker's any more
-- COST   10 us + 3 us per job
-- Items: entry, delivery count. At most 1,000 jobs.
-- @include record
-- @include typed
-- @include own
-- @include wake
-- @include levels
-- @include park
-- @include fields
-- @include named
-- @include tell
local lane, jobs, wake_stream, leases, released, stats, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local worker = ARGV[2]
local known = recorded()
if known then return known end
typed('XLEN', wake_stream)
typed('ZCARD', leases)
typed('HLEN', released)
local heard = ears(stats, events, 'released')
local entries, counts, parked, reply = {}, {}, {}, {}
for i = 3, #ARGV, 2 do entries[#entries + 1], counts[#counts + 1] = ARGV[i], ARGV[i + 1] end
local mine, seen = own(jobs, worker, entries, counts), {}
for i = 1, #entries do
  local entry = entries[i]
  local first = mine[i] and not seen[entry] -- given twice, a job is released once
  reply[i] = first and 1 or 0
  if first then parked[#parked + 1], seen[entry] = entry, true end
end
park(jobs, leases, stats, parked)
for i = 1, #parked do redis.call('HINCRBY', released, parked[i], 1) end
wake(wake_stream, #parked)
if heard.released then tell(events, 'released', named(jobs, parked), worker) end
return answer(reply)
