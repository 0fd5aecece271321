-- suspend: end the delivery of a run that sleeps, or waits for a signal. Only the present holder may do so.
-- KEYS   lane (string), jobs (stream), wake (stream), leases (zset), released (hash), deaths (hash), steps (hash),
--        asleep (zset), turns (hash), behind (zset), held (hash), slots (zset), settled (list), stopped (zset)
-- ARGV   call, worker, entry, delivery int, token int, id, enq, number int, name, kind, delay, attempt int,
--        release_key flag, traced
-- REPLY  {1, due}: the run is suspended, due in ms, -1 never · {2, value}: the signal was there · {3}: the time has
--        passed already; both are recorded · {0}: the lease is lost · {-1}: the run has 1,000 records · {-2}: it has
--        1 MiB of them
-- COST   25 us
-- token, id, enq, number: as in step; with a number, the run resumes the sleep or wait of that record. kind: sleep or
-- wait. delay: '' never, '+ms' from now, '@ms' at a moment. release_key: other jobs of its key may run meanwhile.
-- traced: the traceparent of this delivery, to which the next one links; '' for none. A suspended run is held by a
-- consumer of its own until it is due, and spends no attempt. It keeps its entry, so that a worker of an older version
-- can't lease it.
-- @include clock
-- @include due_at
-- @include held
-- @include held_by
-- @include number
-- @include record
-- @include require_types
-- @include runs
-- @include turns
-- @include wake_one
local known = recorded()
if known then return known end
require_hashes(steps, released, deaths, turns)
require_sorted_sets(leases, asleep, behind)
require_streams(wake)
local q = {
  jobs = jobs, wake = wake, turns = turns, behind = behind, held = held, slots = slots, settled = settled, stopped = stopped,
}
holds.check(q)
if not held_by(jobs, worker, {entry}, {delivery})[1] then return answer({0}) end
local now = clock()
local moment, run = due_at(delay, now), runs.of(steps, id, enq)
if number > run.number then number = 0 end
local open = kind == 'wait' and run.open[name]
if open then
  local there = runs.record(steps, id, open)
  number = open
  if there[2] == 'signal' then
    runs.put(steps, id, run, open, {name, 'wait', there[3], now, attempt, there[6], 0}, false)
    return answer({2, there[6]}, nil, true)
  end
elseif kind == 'wait' and number > 0 then -- a signal came while the run was on its way
  return answer({2, runs.record(steps, id, number)[6]})
end
local over = delay ~= '' and moment == 0
local record = {name, kind, now, 0, attempt, false, over and now or moment}
if traced ~= '' then record[8] = traced end
local answered = runs.put(steps, id, run, number, record, kind == 'wait' or nil)
if answered < 0 then return answer({answered}) end
if over then return answer({3}, nil, true) end
redis.call('XCLAIM', jobs, 'workers', kind == 'wait' and runs.WAITS or runs.ASLEEP, 0, entry, 'JUSTID')
redis.call('ZADD', leases, 'inf', entry) -- workers of older versions take no entry that has a deadline of its own
redis.call('ZADD', asleep, delay == '' and 'inf' or string.format('%.0f', moment), entry)
redis.call('HSET', released, entry, token)
redis.call('HDEL', deaths, entry)
holds.give_back(q, {entry})
if release_key then forget_turns(q, {entry}) end
if redis.call('ZRANK', asleep, entry) == 0 then wake_one(wake) end
return answer({1, delay == '' and -1 or moment}, nil, true)
