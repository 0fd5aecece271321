-- Move a delayed job to the back of its level.
-- @include fields
-- @include levels
-- @include stored
local function promote_one(q, id)
  local body = redis.call('HGET', q.bodies, id)
  redis.call('ZREM', q.delayed, id)
  redis.call('HDEL', q.bodies, id)
  if not body then return end
  local own, headers = parse(stored(body))
  local entry = append(q, compose(own, headers))
  if own.id == id then redis.call('HSET', q.ids, id, entry) end
  local releases = redis.call('HGET', q.released, id)
  if releases then
    redis.call('HDEL', q.released, id)
    redis.call('HSET', q.released, entry, releases)
  end
end
-- Promote jobs that are due, in due order, as far as the *budget* goes: one at least, if there is any of it. Answers
-- their ids.
local function promote(q, now, limit, budget)
  local due = redis.call('ZRANGEBYSCORE', q.delayed, '-inf', string.format('%.0f', now), 'LIMIT', 0, limit)
  for i, id in ipairs(due) do
    local size = redis.call('HSTRLEN', q.bodies, id)
    if budget.left <= 0 or i > 1 and size > budget.left then return {unpack(due, 1, i - 1)} end
    budget.left = budget.left - size
    promote_one(q, id)
  end
  return due
end
