-- Put one job into a queue unless its id is taken. `delay`: '' now, '+ms' from now, '@ms' at a moment. Answers the id
-- and 1, or the id and 0 if the id is taken; and whether the job is now the first one due. If q.added and q.enqueued
-- are given (0 at first), they count the jobs, and `count_added` writes the counts. If q.later is given, which
-- `many_of` makes of all ids that follow, `count_added` also writes the hashes, and answers which job is due first.
-- q.cancels: the key of cancelled ids, if there are any; `count_added` removes the ids of new jobs.
local function many_of(q, some)
  q.later = {taken = {}, ids = {}, bodies = {}, dues = {}, raised = 0, deepest = 0}
  local held = #some > 0 and redis.call('HMGET', q.ids, unpack(some)) or {}
  for i = 1, #some do q.later.taken[some[i]] = held[i] end
end
local function is_taken(q, id)
  if q.later then return q.later.taken[id] end
  return redis.call('HEXISTS', q.ids, id) == 1
end
local function put_later(q, part, key, name, value)
  local later = q.later and q.later[part]
  if later then later[#later + 1], later[#later + 2] = name, value else redis.call('HSET', key, name, value) end
end
local function add_job(q, now, id, delay, fields)
  if id ~= '' and not q.vacant and (is_taken(q, id) or is_entry_id(q, id)) then return id, 0 end
  local due, first = due_at(delay, now), false
  if due > 0 then
    local at = fields[3] == 'id' and 5 or #fields + 1 -- the place of `enq` when the job is promoted
    table.insert(fields, at, string.format('%.0f', now))
    table.insert(fields, at, 'enq')
    put_later(q, 'bodies', q.bodies, id, cmsgpack.pack(fields))
    put_later(q, 'ids', q.ids, id, 'delayed')
    local score = string.format('%.0f', due)
    if q.later then
      q.later.dues[#q.later.dues + 1], q.later.dues[#q.later.dues + 2] = score, id
    else
      redis.call('ZADD', q.delayed, score, id)
      first = redis.call('ZRANK', q.delayed, id) == 0
    end
  else
    local entry = append(q, fields)
    if id == '' then id = entry else put_later(q, 'ids', q.ids, id, entry) end
  end
  if q.cancels then
    q.anew = q.anew or {}
    q.anew[#q.anew + 1] = id
  end
  if q.later then q.later.taken[id] = 'now' end
  if q.enqueued then q.enqueued = q.enqueued + 1 else redis.call('HINCRBY', q.stats, 'enqueued', 1) end
  return id, 1, first
end
-- Answers whether one of the added jobs is the first due now, unless an earlier answer said so.
local function count_added(q)
  local later, first = q.later, false
  if later then
    if #later.bodies > 0 then
      redis.call('HSET', q.bodies, unpack(later.bodies))
      redis.call('ZADD', q.delayed, unpack(later.dues))
      first = later.taken[redis.call('ZRANGE', q.delayed, 0, 0)[1]] == 'now'
    end
    if #later.ids > 0 then redis.call('HSET', q.ids, unpack(later.ids)) end
    wake_for_levels(q, later.raised, later.deepest)
  end
  if q.anew then redis.call('ZREM', q.cancels, unpack(q.anew)) end -- last: a full server would permit it, and then all
  if q.added > 0 then redis.call('HINCRBY', q.stats, 'added', q.added) end
  if q.enqueued > 0 then redis.call('HINCRBY', q.stats, 'enqueued', q.enqueued) end
  return first
end
