-- Move delayed jobs to the back of their levels, in this order.
local function promote_these(q, names)
  local bodies, named, moved, added = redis.call('HMGET', q.bodies, unpack(names)), {}, {}, q.added
  local releases = redis.call('EXISTS', q.released) == 1 and redis.call('HMGET', q.released, unpack(names)) or {}
  redis.call('ZREM', q.delayed, unpack(names))
  redis.call('HDEL', q.bodies, unpack(names))
  q.added = 0
  for i, id in ipairs(names) do
    if bodies[i] then
      local fields, had = carried(stored(bodies[i]))
      local entry = append(q, fields)
      if had == id then named[#named + 1], named[#named + 2] = id, entry end
      if releases[i] then moved[#moved + 1], moved[#moved + 2] = entry, releases[i] end
    end
  end
  if q.added > 0 then redis.call('HINCRBY', q.stats, 'added', q.added) end
  q.added = added
  if #named > 0 then redis.call('HSET', q.ids, unpack(named)) end
  if #moved > 0 then
    redis.call('HDEL', q.released, unpack(names))
    redis.call('HSET', q.released, unpack(moved))
  end
end
-- Promote due jobs, in due order, within the *budget*: at least one, unless the budget is spent. Answers their ids.
local function promote(q, now, limit, budget)
  local due = redis.call('ZRANGEBYSCORE', q.delayed, '-inf', string.format('%.0f', now), 'LIMIT', 0, limit)
  for i, id in ipairs(due) do
    local size = redis.call('HSTRLEN', q.bodies, id)
    if budget.left <= 0 or i > 1 and size > budget.left then
      due = {unpack(due, 1, i - 1)}
      break
    end
    budget.left = budget.left - size
  end
  if #due > 0 then promote_these(q, due) end
  return due
end
