-- step: record a step of a run, and renew the lease of its job. Only the present holder may do so.
-- KEYS   lane (string), jobs (stream)
-- ARGV   call, worker, entry, delivery int, token int, duration, ttl int, id, enq, number int, name, kind,
--        is_over flag, attempt int, took int, value...
-- REPLY  number: the number of the record · 0 the lease is lost · -1 the run has 1,000 records · -2 it has 1 MiB of
--        them
-- COST   20 us
-- duration, ttl: as in renew. token: the number of all deliveries of the job so far. id: the job's, or its entry. enq: ms
-- of its first enqueue. number: 0 for a new record, otherwise the record that this one replaces. kind: as in steps,
-- with the name '' of an undoing. is_over: 0: the step begins, and is to run once, or the undoing is not over. took: ms since it began. value: left out if there is none. Attempts count from the last
-- record: earlier deliveries count as released.
if duration ~= '' then whole(duration) end
require_hashes(steps)
if token > 1 then require_hashes(released, deaths) end
if not held_by(jobs, worker, {entry}, {delivery})[1] then return answer(0) end
local now, run = clock(), runs.of(steps, id, enq)
local q = {
  -- @queue
}
renew_leases(q, worker, {entry}, duration, ttl, now) -- may fail: first
local record = {name, kind, now - took, is_over and now or 0, attempt, ARGV[value] or false, 0}
local answered = runs.put(steps, id, run, number, record)
if answered > 0 and token > 1 then redis.call('HSET', released, entry, token - 1) end
if answered > 0 and delivery > 1 then redis.call('HDEL', deaths, entry) end
return answer(answered, nil, true)
