-- leave: unregister a worker. Jobs that it still holds go to the front untouched, and no trace of it remains.
-- KEYS   jobs (stream), wake (stream), stats (hash)
-- ARGV   worker, limit count, idle flag
-- REPLY  {released, more}: more 1 = call again; with `idle`: the worker holds jobs, and stays registered
-- COST   10 us + 3 us per job released
local mine = redis.pcall('XPENDING', jobs, 'workers', '-', '+', limit, worker)
if mine.err and not string.find(mine.err, 'NOGROUP', 1, true) then return mine end
if idle and #mine > 0 then return {0, 1} end
require_streams(wake)
require_sorted_sets(workers, leases)
require_hashes(registered, released, deaths)
local q = {
  -- @queue without limited
}
holds.check(q)
local listening = listeners(stats, events, 'released')
local entries = {}
for i = 1, #mine do entries[i] = mine[i][1] end
local ids_left = finish(q, entries, {released = '+1', budget = new_budget(), listening = listening.released})
if listening.released then publish(events, 'released', ids_left, worker) end
if #mine == limit or #entries < #mine then
  wake_many(wake, #entries)
  return {#entries, 1}
end
local left = not mine.err and redis.call('XPENDING', jobs, 'workers', '-', '+', limit, worker) or {}
for i = 1, #left do redis.call('XACK', jobs, 'workers', left[i][1]) end -- 6.2: removed by XDEL by hand
if not mine.err then
  redis.call('XGROUP', 'DELCONSUMER', jobs, 'workers', worker)
  -- A job may have woken this worker just now; then another reader must be woken for it.
  wake_many(wake, #entries + #redis.call('XPENDING', jobs, 'workers', '-', '+', 8, 'idle'))
end
if mine.err or not redis.call('XPENDING', jobs, 'workers', '-', '+', 1)[1] then redis.call('DEL', deaths) end
redis.call('ZREM', workers, worker)
redis.call('HDEL', registered, worker)
if redis.call('EXISTS', workers) == 1 then redis.call('HDEL', facts, worker, '?' .. worker) else redis.call('DEL', facts) end
return {#entries, 0}
