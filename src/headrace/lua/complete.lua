-- complete: remove jobs for good. Decided by XDEL, so exactly one caller wins each; effects are the winner's.
-- KEYS   lane (string), jobs (stream), ids (hash), leases (zset), released (hash), stats (hash), events (channel),
--        flows (zset), limited (zset), others...
-- ARGV   call, worker, limit count, with_ids flag, results, follows, items...
-- REPLY  one per job: 1 this call completed it · 0 somebody already had, or (fenced) it is not this worker's any more
-- COST   2-3.5 us per job in a batch of 500; a result or a follow-up 3-6 us more
-- worker: '' for first completer wins, else the fence. limit: number of jobs. Items: `limit` entries; when fenced
-- `limit` delivery counts; when with_ids is 1 `limit` ids ('' when a job has no field `id`); `results` times {job
-- number, ttl ms, bytes}, each with a key; `follows` times {job number, id, delay, level, number of fields, fields...},
-- each with eight keys: jobs, wake, ids, delayed, bodies, stats, events, and the stream of its level, of its queue. At
-- most 1,000 jobs. For a flow's job flow_advance is the better way: here it moves on later, to the next stage of its
-- declaration, without a result.
-- @include add
-- @include clock
-- @include due_at
-- @include held_by
-- @include marks
-- @include number
-- @include publish
-- @include record
-- @include require_types
-- @include retire
-- @include wake_one
local results, follows = whole(ARGV[5], 0, #KEYS), whole(ARGV[6], 0, #KEYS)
local known = recorded()
if known then return known end
require_types('HLEN', ids)
local heard = listeners(stats, events, 'completed')
local q = {
  jobs = jobs, ids = ids, leases = leases, released = released, limited = limited, flows = flows, levels = {},
  unnoted = redis.call('EXISTS', leases, released, limited) == 0,
}
if not q.unnoted then
  require_types('ZCARD', leases, limited)
  require_types('HLEN', released)
end
if with_ids then require_types('ZCARD', flows) end
for i = 10 + results, 9 + results + 8 * follows, 8 do
  require_types('XLEN', KEYS[i], KEYS[i + 1], KEYS[i + 7])
  require_types('HLEN', KEYS[i + 2], KEYS[i + 4], KEYS[i + 5])
  require_types('ZCARD', KEYS[i + 3])
end
local at, won, reply = 7 + limit, 0, {}
local effects = at + (worker ~= '' and limit or 0) + (with_ids and limit or 0)
for i = 1, results do whole(ARGV[effects + 3 * i - 2], 1) end
effects = effects + 3 * results
for _ = 1, follows do
  due_at(ARGV[effects + 2], 0)
  whole(ARGV[effects + 3], 0, 9)
  effects = effects + 5 + 2 * whole(ARGV[effects + 4] / 2, 1, 3900)
end
local entries = {unpack(ARGV, 7, 6 + limit)}
local mine
if worker ~= '' then
  mine = held_by(jobs, worker, entries, {unpack(ARGV, at, at + limit - 1)})
  at = at + limit
end
-- Freed before anything is written, so that a full server can still be drained.
local acked = 0
if not mine then acked = redis.call('XACK', jobs, 'workers', unpack(entries)) end
if acked == limit then
  -- All were pending, so all are there; one counts below limit only where somebody used XDEL by hand.
  won = redis.call('XDEL', jobs, unpack(entries))
  for i = 1, limit do reply[i] = (limit > 1 or won == 1) and 1 or 0 end
  if not q.unnoted then forget_entries(q, entries) end
else
  for i = 1, limit do
    reply[i] = 0
    if not mine or mine[i] then
      reply[i] = remove_entry(q, entries[i])
      won = won + reply[i]
    end
  end
end
if won > 0 then redis.call('HINCRBY', stats, 'completed', won) end
if heard.completed then
  local done = {}
  for i = 1, limit do
    local id = with_ids and ARGV[at + i - 1] or ''
    if reply[i] == 1 then done[#done + 1] = id ~= '' and id or entries[i] end
  end
  publish(events, 'completed', done, worker)
end
if with_ids then
  local what = redis.call('EXISTS', flows) == 1 and COMPLETED or nil
  for i = 1, limit do
    local id = ARGV[at + i - 1]
    if reply[i] == 1 and id ~= '' then free_id(q, id, entries[i], what) end
  end
  at = at + limit
end
for i = 1, results do
  if reply[tonumber(ARGV[at])] == 1 then redis.call('SET', KEYS[9 + i], ARGV[at + 2], 'PX', ARGV[at + 1]) end
  at = at + 3
end
local now = follows > 0 and clock()
for i = 1, follows do
  local fields, last, base, level = {}, at + 4 + ARGV[at + 4], 9 + results + 8 * (i - 1), tonumber(ARGV[at + 3])
  for j = at + 5, last do fields[#fields + 1] = ARGV[j] end
  if reply[tonumber(ARGV[at])] == 1 then
    local channel, q = KEYS[base + 7], {
      jobs = KEYS[base + 1], wake = KEYS[base + 2], ids = KEYS[base + 3], delayed = KEYS[base + 4],
      bodies = KEYS[base + 5], stats = KEYS[base + 6], levels = {n = level, [level] = KEYS[base + 8]},
    }
    local id, new, first = add(q, now, ARGV[at + 1], ARGV[at + 2], fields)
    if first then wake_one(q.wake) end
    if new == 1 and listeners(q.stats, channel, 'added').added then publish(channel, 'added', {id}) end
  end
  at = last + 1
end
return answer(reply)
