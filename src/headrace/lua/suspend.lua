-- suspend: end the delivery of a run that sleeps, or waits for signals. Only the present holder may do so.
-- KEYS   lane (string), jobs (stream), wake (stream)
-- ARGV   call, worker, entry, delivery int, token int, id, enq, release_key flag, began, waits...
-- REPLY  {1, due}: the run is suspended, due in ms, -1 never · {0}: the lease is lost
-- COST   20 us + 1 us for each of its waits
-- token, id, enq: as in step. began: when the delivery began, '+ms' before now or '@ms'. waits: the numbers of its sleeps
-- and waits, as wait answered them. The run goes on when the
-- first of them is over: now, if one is by now. release_key: other jobs of its key may run meanwhile. A suspended run is
-- held by a consumer of its own until it is due, and spends no attempt. It keeps its entry, so that a worker of an older
-- version can't lease it.
-- @feature leases
-- @feature suspects
-- @include began
-- @include clock
-- @include finish
-- @include limits
-- @include held_by
-- @include number
-- @include record
-- @include require_types
-- @include runs
-- @include ordered
-- @include wake_one
local known = recorded()
if known then return known end
for i = waits, #ARGV do whole(ARGV[i]) end
require_hashes(steps, released, deaths, turns)
require_sorted_sets(leases, asleep, behind)
require_streams(wake)
local q = {
  -- @queue without limited
}
holds.check(q)
if not held_by(jobs, worker, {entry}, {delivery})[1] then return answer({0}) end
runs.of(steps, id, enq)
local owner, moment, now = runs.ASLEEP, math.huge, clock()
for i = waits, #ARGV do
  local record = runs.record(steps, id, tonumber(ARGV[i]))
  local open = record[4] == 0 and (record[2] == 'sleep' or record[2] == 'wait')
  if record[2] == 'wait' then owner = runs.WAITS end
  if not open then
    moment = now
  elseif record[7] > 0 then
    moment = math.min(moment, record[7])
  end
end
local due = moment == math.huge and 'inf' or string.format('%.0f', moment)
finish(q, {entry}, {to = owner, hidden = true, released = '=' .. token, itself = true})
redis.call('ZADD', asleep, due, entry)
if runs.read(steps, id) then runs.delivered(steps, id, began_at(began, now), now, token, worker) end
if release_key then forget_turns(q, {entry}, true) end
if redis.call('ZRANK', asleep, entry) == 0 then wake_one(wake) end
return answer({1, due == 'inf' and -1 or moment}, nil, true)
