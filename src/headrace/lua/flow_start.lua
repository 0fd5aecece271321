-- flow_start: begin a run of a flow: its state, and its job in its first stage. One that goes on already is left as it is.
-- KEYS   lane (string), index (zset), others...
-- ARGV   call, id, stage, delay, attributes, members, items...
-- REPLY  1 begun · 0 a run of this id goes on, or one of its jobs
-- COST   25 us
-- Keys: flow:<id>, then jobs, wake, ids, released, delayed, bodies, stats, flows, events of the stage's queue. attributes:
-- JSON. Items: `members` entries for the index, then the job's fields.
-- @include clock
-- @include due_at
-- @include enter_stage
-- @include note
-- @include number
-- @include record
-- @include require_types
local run, q = others[1], {
  jobs = others[2], wake = others[3], ids = others[4], released = others[5], delayed = others[6], bodies = others[7],
  stats = others[8], flows = others[9], events = others[10], levels = {n = 0},
}
local members = whole(ARGV[6], 0, #ARGV - 6)
due_at(delay, 0)
whole((#ARGV - 6 - members) / 2, 1, 3900)
local known = recorded()
if known then return known end
local length = redis.pcall('XLEN', q.jobs)
if type(length) == 'table' then return length end
require_types('XLEN', q.wake)
require_types('HLEN', run, q.ids, q.released, q.bodies, q.stats)
require_types('ZCARD', index, q.delayed, q.flows)
local going = redis.call('HMGET', run, 'state', 'live')
-- It has ended, and yet a job of it was redriven and goes on: the id stays taken until that has ended, too.
if going[1] == 'running' or tonumber(going[2] or 0) > 0 then return answer(0) end
local now, fields, listed = clock(), {}, {}
for i = 7, 6 + members do listed[#listed + 1] = ARGV[i] end
for i = 7 + members, #ARGV do fields[#fields + 1] = ARGV[i] end
local nonce = nonces(run, now, 1)
enter_stage(q, id, now, delay, fields, nonce)
redis.call('DEL', run) -- of a run that has ended
nonce = string.format('%.0f', nonce)
redis.call('HSET', run, 'state', 'running', 'started', string.format('%.0f', now), 'attributes', attributes, 'live', 1,
  'nonce', nonce, 'at:' .. id, 'active ' .. stage .. ' ' .. nonce .. ' ', 'job:' .. id, cmsgpack.pack(fields))
if members > 0 then
  redis.call('HSET', run, 'index', cmsgpack.pack(listed))
  for i = 1, members do redis.call('ZADD', index, 0, listed[i]) end
end
publish_noted(q)
return answer(1)
