-- renew: renew leases from now on. Only the present holder may do so.
-- KEYS   lane (string), jobs (stream)
-- ARGV   call, worker, duration, ttl int, items...
-- REPLY  one per job: 1 the lease is still this worker's · 0 it is lost
-- COST   2 us per job
-- duration: ms, '' for the worker's own. ttl: as in lease. Items: entry, delivery count. At most 1,000 jobs.
if duration ~= '' then whole(duration) end
local entries, counts, kept, reply = {}, {}, {}, {}
for i = items, #ARGV, 2 do entries[#entries + 1], counts[#counts + 1] = ARGV[i], ARGV[i + 1] end
local mine = held_by(jobs, worker, entries, counts)
for i = 1, #entries do
  reply[i] = mine[i] and 1 or 0
  if mine[i] then kept[#kept + 1] = entries[i] end
end
local q = {
  -- @queue
}
if #kept > 0 then renew_leases(q, worker, kept, duration, ttl, clock()) end
return answer(reply)
