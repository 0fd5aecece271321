-- suspend: end the delivery of a run that sleeps, or waits for signals or children. Only the present holder may do so.
-- KEYS   lane (string), jobs (stream), wake (stream)
-- ARGV   call, worker, entry, delivery int, token int, id, enq, release_key flag, every flag, began, waits...
-- REPLY  {1, due}: the run is suspended, due in ms, -1 never · {0}: the lease is lost
-- COST   20 us + 1 us for each of its waits
-- token, id, enq: as in step. began: when the delivery began, '+ms' before now or '@ms'. waits: the numbers of its
-- sleeps and waits, as wait answered them, and of its children. The run goes on when the first of them is over: now, if
-- one is by now. every: when all are over, which are children, or one has failed. release_key: other jobs of its key
-- may run meanwhile. A suspended run is held by a consumer of its own until it is due, and spends no attempt. It keeps
-- its entry, so that a worker of an older version can't lease it. A run that waits for a child in another slot is due
-- within an hour: its delivery starts a child that the slot has lost, and fails none, as a report may be on its way.
for i = waits, #ARGV do whole(ARGV[i]) end
require_hashes(steps, released, deaths, turns)
require_sorted_sets(leases, asleep, behind)
require_streams(wake)
local q = {
  -- @queue without limited
}
holds.check(q)
if not held_by(jobs, worker, {entry}, {delivery})[1] then return answer({0}) end
local run = runs.of(steps, id, enq)
local owner, moment, now, open, wakes_now = runs.ASLEEP, math.huge, clock(), 0, false
for i = waits, #ARGV do
  local record = runs.record(steps, id, tonumber(ARGV[i]))
  local is_open = record[4] == 0 and (record[2] == 'sleep' or record[2] == 'wait' or record[2] == 'child')
  if record[2] ~= 'sleep' then owner = runs.WAITS end
  if is_open then
    open = open + 1
    if record[runs.CHILD_DEPTH] then record[7] = now + runs.AGAIN_MS end
    if record[7] > 0 then moment = math.min(moment, record[7]) end
  else
    wakes_now = wakes_now or not every or runs.child_failed(record)
  end
end
if wakes_now or open == 0 then moment = now end
local pending = every and open > 1 and moment ~= now and open or nil
if run.number > 0 and run.more.pending ~= pending then
  run.more.pending = pending
  runs.write(steps, id, run)
end
local due = moment == math.huge and 'inf' or string.format('%.0f', moment)
finish(q, {entry}, {to = owner, hidden = true, released = '=' .. token, itself = true})
redis.call('ZADD', asleep, due, entry)
if runs.read(steps, id) then runs.delivered(steps, id, began_at(began, now), now, token, worker) end
if release_key then forget_turns(q, {entry}, true) end
if redis.call('ZRANK', asleep, entry) == 0 then wake_one(wake) end
return answer({1, due == 'inf' and -1 or moment}, nil, true)
