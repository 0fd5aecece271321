-- hold: end the delivery of a run that this worker's build may not continue. Only the present holder may do so.
-- KEYS   lane (string), jobs (stream), wake (stream)
-- ARGV   call, worker, entry, delivery int, token int, id, enq, began, waits_for
-- REPLY  {1, due, build...}: the run is handed out again at due, in ms; the builds of living workers, at most 100 of
--        them, '' for one without · {0}: the lease is lost
-- COST   25 us + 1 us per worker, at most 100
-- token, id, enq: as in step. began: as in suspend. waits_for: the builds that may continue it, in words. It spends no
-- attempt, and sleeps for at least 5 s: longer where many runs do, so that a queue hands out 200 of them a second. A
-- worker of such a build lets it go on before: see unpin.
require_hashes(steps, released, deaths, facts, pinned)
require_sorted_sets(leases, asleep, workers)
require_streams(wake)
local q = {
  -- @queue without limited
}
holds.check(q)
if not held_by(jobs, worker, {entry}, {delivery})[1] then return answer({0}) end
local now, run = clock(), runs.of(steps, id, enq)
local due = now + math.max(5000, 5 * redis.call('ZCARD', asleep))
finish(q, {entry}, {to = runs.ASLEEP, hidden = true, released = '=' .. token, itself = true})
redis.call('ZADD', asleep, string.format('%.0f', due), entry)
if run.more.build then
  run.more.waits_for, run.more.held = waits_for, due
  builds.pin(pinned, entry, due, run.more.build)
  runs.write(steps, id, run)
end
if runs.read(steps, id) then runs.delivered(steps, id, began_at(began, now), now, token, worker) end
if redis.call('ZRANK', asleep, entry) == 0 then wake_one(wake) end
local reply = {1, due}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', workers, now, '+inf', 'LIMIT', 0, 100)) do
  reply[#reply + 1] = string.match(redis.call('HGET', facts, name) or '', '"build":"([^"]*)"') or ''
end
return answer(reply)
