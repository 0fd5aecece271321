-- A job leaves its queue: remove its entry, all data under the entry's name, and its id, if the job owns it. q: jobs,
-- ids, leases, released, limited, flows; asleep, unless it is leased; turns and behind, unless it is a flow's; wake, if
-- the next job of its key is to wake a reader; held, slots, settled and stopped, unless the job is not leased; levels, unless all jobs are in the jobs stream, as leased jobs are; steps,
-- if jobs are removed, and traces, to keep their runs for the history; and `unnoted`, if no key has data of any entry.
-- @feature leases
-- @feature limits
-- @include flows
-- @include held
-- @include levels
-- @include ordered
-- @include runs
-- Forget the data of entries: deadlines, releases, due times of rate limits, turns of keys.
local function forget_entries(q, names)
  redis.call('ZREM', q.leases, unpack(names))
  redis.call('ZREM', q.limited, unpack(names))
  redis.call('HDEL', q.released, unpack(names))
  if q.asleep then redis.call('ZREM', q.asleep, unpack(names)) end
  if q.turns then forget_turns(q, names) end
  if q.held then holds.give_back(q, names) end
end
-- Answers 1, or 0 if it had gone before; and whether it was leased or parked.
local function remove_entry(q, name)
  local stream, entry = q.jobs, name
  if q.levels then stream, entry = entry_of(q, name) end
  local gone = stream and redis.call('XDEL', stream, entry) or 0
  local held = stream == q.jobs and redis.pcall('XACK', q.jobs, 'workers', entry) == 1
  if not q.unnoted then forget_entries(q, {name}) end
  return gone, held
end
-- Another job may own the id: a foreign producer added a second job with it. *what*: the mark for its flow, if any.
local function free_id(q, id, name, what)
  if not id or redis.call('HGET', q.ids, id) ~= name then return false end
  redis.call('HDEL', q.ids, id)
  if what then mark(q.flows, id, what) end
  return true
end
-- The same for many ids; ids that other jobs own stay.
local function free_ids(q, ids, names, what)
  local free, held = {}, #ids > 0 and redis.call('HMGET', q.ids, unpack(ids)) or {}
  for i = 1, #ids do
    if held[i] == names[i] then free[#free + 1] = ids[i] end
  end
  if #free == 0 then return end
  redis.call('HDEL', q.ids, unpack(free))
  for i = 1, what and #free or 0 do mark(q.flows, free[i], what) end
end
-- The records of its run are removed with a job that is REMOVED.
local function retire(q, name, id, what)
  local gone, held = remove_entry(q, name)
  local freed = free_id(q, id, name, what)
  if what == REMOVED and (freed or not id) then runs.leave(q, id or name) end
  return gone, held
end
