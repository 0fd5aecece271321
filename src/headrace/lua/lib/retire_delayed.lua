-- A delayed job leaves its queue. Answers 1, or 0 if it had gone before.
-- @include marks
local function retire_delayed(q, id, what)
  local gone = redis.call('ZREM', q.delayed, id)
  redis.call('HDEL', q.bodies, id)
  redis.call('HDEL', q.released, id)
  redis.call('HDEL', q.ids, id)
  if what then mark(q.flows, id, what) end
  return gone
end
