-- release: give jobs back to the front, at once or after a pause. No attempt is spent. Only the present holder may.
-- KEYS   lane (string), jobs (stream), wake (stream), stats (hash)
-- ARGV   call, worker, pause int, items...
-- REPLY  one per job: 1 released · 0 not this worker's any more
-- COST   10 us + 3 us per job
-- pause: ms, 0 for none. During the pause the consumer `limited` has the jobs; after it they come before all other
-- jobs. Items: entry, delivery count. At most 1,000 jobs.
require_streams(wake)
require_sorted_sets(leases, limited)
require_hashes(released, deaths)
local q = {
  -- @queue
}
holds.check(q)
local listening = listeners(stats, events, 'released')
local entries, counts, given_back, reply = {}, {}, {}, {}
for i = items, #ARGV, 2 do entries[#entries + 1], counts[#counts + 1] = ARGV[i], ARGV[i + 1] end
local mine, seen = held_by(jobs, worker, entries, counts), {}
for i = 1, #entries do
  local entry = entries[i]
  local first = mine[i] and not seen[entry] -- given twice, a job is released once
  reply[i] = first and 1 or 0
  if first then given_back[#given_back + 1], seen[entry] = entry, true end
end
local later = pause > 0
local ids_ended = finish(q, given_back, {
  to = later and 'limited', due = later and clock() + pause, released = '+1', listening = listening.released,
})
if not later then wake_many(wake, #given_back) end
if listening.released then publish(events, 'released', ids_ended, worker) end
return answer(reply)
