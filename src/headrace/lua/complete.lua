-- complete: remove jobs for good. Decided by XDEL, so exactly one caller wins each; effects are the winner's.
-- KEYS   lane (string), jobs (stream), ids (hash), leases (zset), released (hash), stats (hash), events (channel), flows (zset), results and follow-ups...
-- ARGV   call, worker, limit, with_ids, results, follows, items...
-- REPLY  one per job: 1 this call completed it · 0 somebody already had, or (fenced) it is not this worker's any more
-- COST   2-3.5 us per job in a batch of 500; a result or a follow-up 3-6 us more
-- worker: '' for first completer wins, else the fence. limit: number of jobs. Items: `limit` entries; when fenced
-- `limit` delivery counts; when with_ids is 1 `limit` ids ('' when the entry is the id); `results` times {job
-- number, ttl ms, bytes}, each with a key; `follows` times {job number, id, delay, level, number of fields, fields...},
-- each with eight keys: jobs, wake, ids, delayed, bodies, stats, events, and the stream of its level, of its queue. At
-- most 1,000 jobs. For a flow's job flow_advance is the better way: here it moves on later, to the next stage of its
-- declaration, without a result.
-- @include record
-- @include typed
-- @include clock
-- @include own
-- @include levels
-- @include unnamed
-- @include due
-- @include add
-- @include ring
-- @include tell
local lane, jobs, ids, leases, released, stats, events, flows = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local worker, n, with_ids = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local results, follows = tonumber(ARGV[5]), tonumber(ARGV[6])
local known = recorded()
if known then return known end
typed('HLEN', ids)
local heard = ears(stats, events, 'completed')
local noted = redis.call('ZCARD', leases) + redis.call('HLEN', released)
if with_ids then typed('ZCARD', flows) end
for i = 9 + results, 8 + results + 8 * follows, 8 do
  typed('XLEN', KEYS[i], KEYS[i + 1], KEYS[i + 7])
  typed('HLEN', KEYS[i + 2], KEYS[i + 4], KEYS[i + 5])
  typed('ZCARD', KEYS[i + 3])
end
local at, won, reply = 7 + n, 0, {}
local entries = {unpack(ARGV, 7, 6 + n)}
local mine
if worker ~= '' then
  mine = own(jobs, worker, entries, {unpack(ARGV, at, at + n - 1)})
  at = at + n
end
-- Freed before anything is written, so that a full server can still be drained.
local acked = 0
if not mine then acked = redis.call('XACK', jobs, 'workers', unpack(entries)) end
if acked == n then
  -- All were pending, so all are there; one counts below n only where somebody used XDEL by hand.
  won = redis.call('XDEL', jobs, unpack(entries))
  for i = 1, n do reply[i] = (n > 1 or won == 1) and 1 or 0 end
else
  for i = 1, n do
    reply[i] = 0
    if not mine or mine[i] then
      reply[i] = redis.call('XDEL', jobs, entries[i])
      redis.call('XACK', jobs, 'workers', entries[i])
      won = won + reply[i]
    end
  end
end
if won > 0 then
  redis.call('HINCRBY', stats, 'completed', won)
  if noted > 0 then
    redis.call('ZREM', leases, unpack(entries))
    for i = 1, n do
      if reply[i] == 1 then redis.call('HDEL', released, entries[i]) end
    end
  end
end
if heard.completed then
  local done = {}
  for i = 1, n do
    local id = with_ids and ARGV[at + i - 1] or ''
    if reply[i] == 1 then done[#done + 1] = id ~= '' and id or entries[i] end
  end
  tell(events, 'completed', done, worker)
end
if with_ids then
  local flowing = redis.call('EXISTS', flows) == 1
  for i = 1, n do
    local id = ARGV[at + i - 1]
    if reply[i] == 1 and id ~= '' and redis.call('HGET', ids, id) == entries[i] then
      redis.call('HDEL', ids, id)
      if flowing then redis.call('ZADD', flows, 'XX', 1, id) end
    end
  end
  at = at + n
end
for i = 1, results do
  if reply[tonumber(ARGV[at])] == 1 then redis.call('SET', KEYS[8 + i], ARGV[at + 2], 'PX', ARGV[at + 1]) end
  at = at + 3
end
local now = follows > 0 and clock()
for i = 1, follows do
  local fields, last, base, level = {}, at + 4 + ARGV[at + 4], 8 + results + 8 * (i - 1), tonumber(ARGV[at + 3])
  for j = at + 5, last do fields[#fields + 1] = ARGV[j] end
  if reply[tonumber(ARGV[at])] == 1 then
    local listeners, q = KEYS[base + 7], {
      jobs = KEYS[base + 1], wake = KEYS[base + 2], ids = KEYS[base + 3], delayed = KEYS[base + 4],
      bodies = KEYS[base + 5], stats = KEYS[base + 6], levels = {n = level, [level] = KEYS[base + 8]},
    }
    local id, new, first = add(q, now, ARGV[at + 1], ARGV[at + 2], fields)
    if first then ring(q.wake) end
    if new == 1 and ears(q.stats, listeners, 'added').added then tell(listeners, 'added', {id}) end
  end
  at = last + 1
end
return answer(reply)
