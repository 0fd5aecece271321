-- fail_worker: declare a worker dead by hand: its jobs go to the front, and its next beat fails.
-- KEYS   lane (string), jobs (stream), wake (stream), stats (hash)
-- ARGV   call, name, limit count
-- REPLY  {moved, more}: more 1 = call again
-- COST   10 us + 1 us per worker + 1.5 us per job moved; with levels, or listeners, at most 1 MiB of jobs
-- name: a registration, `<name>.<random>`, or the part before its last dot; or any consumer of the group.
local summary = redis.pcall('XPENDING', jobs, 'workers')
if summary.err and not string.find(summary.err, 'NOGROUP', 1, true) then return summary end
require_streams(wake)
require_hashes(registered, deaths)
require_sorted_sets(workers, leases)
local q = {
  -- @queue without released, limited
}
holds.check(q)
local listening = listeners(stats, events, 'reclaimed')
redis.call('ZREM', workers, '') -- a full server permits it, and then all later writes
local failed, moved, more, budget = {}, 0, 0, new_budget()
for _, worker in ipairs(redis.call('ZRANGE', workers, 0, -1)) do
  if worker == name or string.match(worker, '^(.*)%.[^.]*$') == name then
    redis.call('ZADD', workers, 0, worker) -- from now on its beats fail, even if the rest takes several calls
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
    local number, entries, ids_moved = take_over(q, worker, limit - moved, budget, listening.reclaimed)
    moved = moved + number
    tell_holders(control, table.concat(entries, ' '))
    if listening.reclaimed then publish(events, 'reclaimed', ids_moved, worker) end
  end
  if not summary.err and redis.call('XPENDING', jobs, 'workers', '-', '+', 1, worker)[1] then more = 1 end
end
wake_many(wake, moved)
return answer({moved, more})
