-- Put one job into a queue unless its id is taken. `delay`: '' now, '+ms' from now, '@ms' at a moment.
-- Answers the id and 1, or the id and 0 when a job of that id is there already; and whether it is the first due now. With
-- q.added and q.enqueued, 0 at first, they are counted there, until `count_added` writes it.
-- @include due_at
-- @include is_entry_id
-- @include levels
local function add(q, now, id, delay, fields)
  if id ~= '' and (redis.call('HEXISTS', q.ids, id) == 1 or is_entry_id(q, id)) then return id, 0 end
  local due, first = due_at(delay, now), false
  if due > 0 then
    fields[#fields + 1] = 'enq'
    fields[#fields + 1] = string.format('%.0f', now)
    redis.call('HSET', q.bodies, id, cmsgpack.pack(fields))
    redis.call('ZADD', q.delayed, string.format('%.0f', due), id)
    redis.call('HSET', q.ids, id, 'delayed')
    first = redis.call('ZRANK', q.delayed, id) == 0
  else
    local entry = append(q, fields)
    if id == '' then id = entry else redis.call('HSET', q.ids, id, entry) end
  end
  if q.enqueued then q.enqueued = q.enqueued + 1 else redis.call('HINCRBY', q.stats, 'enqueued', 1) end
  return id, 1, first
end
local function count_added(q)
  if q.added > 0 then redis.call('HINCRBY', q.stats, 'added', q.added) end
  if q.enqueued > 0 then redis.call('HINCRBY', q.stats, 'enqueued', q.enqueued) end
end
