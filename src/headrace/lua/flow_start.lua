-- flow_start: begin a run of a flow: its state, and its job in its first stage. One that goes on already is left as it is.
-- KEYS   lane (string), index (zset), run and stage...
-- ARGV   call, id, stage, delay, attributes, members, items...
-- REPLY  1 begun · 0 a run of this id goes on
-- COST   25 us
-- Keys: flow:<id>, then jobs, wake, ids, released, delayed, bodies, stats, flows, events of the stage's queue. attributes:
-- JSON. Items: `members` entries for the index, then the job's fields.
-- @include record
-- @include typed
-- @include clock
-- @include ring
-- @include due
-- @include tell
-- @include note
-- @include fields
-- @include levels
-- @include promote
-- @include put
local lane, index = KEYS[1], KEYS[2]
local run, q = KEYS[3], {
  jobs = KEYS[4], wake = KEYS[5], ids = KEYS[6], released = KEYS[7], delayed = KEYS[8], bodies = KEYS[9],
  stats = KEYS[10], flows = KEYS[11], events = KEYS[12], levels = {n = 0},
}
local id, stage, delay, attributes, members = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local known = recorded()
if known then return known end
local length = redis.pcall('XLEN', q.jobs)
if type(length) == 'table' then return length end
typed('XLEN', q.wake)
typed('HLEN', run, q.ids, q.released, q.bodies, q.stats)
typed('ZCARD', index, q.delayed, q.flows)
if redis.call('HGET', run, 'state') == 'running' then return answer(0) end
local now, fields, listed = clock(), {}, {}
for i = 7, 6 + members do listed[#listed + 1] = ARGV[i] end
for i = 7 + members, #ARGV do fields[#fields + 1] = ARGV[i] end
put(q, id, now, delay, fields)
redis.call('DEL', run) -- of a run that has ended
redis.call('HSET', run, 'state', 'running', 'started', string.format('%.0f', now), 'attributes', attributes,
  'at:' .. id, 'active ' .. stage, 'job:' .. id, cmsgpack.pack(fields))
if members > 0 then
  redis.call('HSET', run, 'index', cmsgpack.pack(listed))
  for i = 1, members do redis.call('ZADD', index, 0, listed[i]) end
end
tell_noted(q)
return answer(1)
