-- flow_start: begin a run of a flow: its state, and a job in its first stage. A run that has not ended stays.
-- KEYS   lane (string), index (zset), others...
-- ARGV   call, id, stage, delay, attributes, members, items...
-- REPLY  1 begun · 0 a run with this id, or a job of it, has not ended
-- COST   25 us
-- Keys: flow:<id>, then jobs, wake, ids, released, delayed, bodies, stats, flows, events, cancels of the stage's queue. A
-- sealed shard answers the error SHARDS and the version of the table that sealed it, and begins nothing. attributes: JSON.
-- Items: `members` entries for the index, then the job's fields.
local run, q = others[1], {levels = {n = 0}}
for i, part in ipairs({'jobs', 'wake', 'ids', 'released', 'delayed', 'bodies', 'stats', 'flows', 'events', 'cancels'}) do
  q[part] = others[i + 1]
end
members = whole(members, 0, #ARGV - items + 1)
local first = items + members -- of the job's fields
due_at(delay, 0)
whole((#ARGV - first + 1) / 2, 1, 3900)
local length = redis.pcall('XLEN', q.jobs)
if type(length) == 'table' then return length end
require_streams(q.wake)
require_hashes(run, q.ids, q.released, q.bodies, q.stats)
require_sorted_sets(index, q.delayed, q.flows, q.cancels)
local sealed = redis.call('HGET', q.stats, 'shards')
local going = redis.call('HMGET', run, 'state', 'live')
-- The run has ended, but a job of it was redriven and goes on: the id stays taken until that job has ended, too.
if going[1] == 'running' or tonumber(going[2] or 0) > 0 then return answer(0) end
if sealed then error('SHARDS ' .. sealed, 0) end
local now, fields, listed = clock(), {}, {}
for i = items, first - 1 do listed[#listed + 1] = ARGV[i] end
for i = first, #ARGV do fields[#fields + 1] = ARGV[i] end
local nonce = reserve_nonces(run, now, 1)
enter_stage(q, id, now, delay, fields, nonce)
redis.call('DEL', run) -- the state of a run that has ended
nonce = string.format('%.0f', nonce)
redis.call('HSET', run, 'state', 'running', 'started', string.format('%.0f', now), 'attributes', attributes, 'live', 1,
  'nonce', nonce, 'at:' .. id, 'active ' .. stage .. ' ' .. nonce .. ' ', kept_as(id, fields))
if members > 0 then
  redis.call('HSET', run, 'index', cmsgpack.pack(listed))
  for i = 1, members do redis.call('ZADD', index, 0, listed[i]) end
end
publish_noted(q)
return answer(1)
