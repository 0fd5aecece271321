-- A delayed job leaves its queue; the records of its run are removed with a job that is REMOVED. Answers 1, or 0 if it
-- had gone before.
-- @feature leases
-- @feature delayed
-- @include flows
-- @include runs
local function retire_delayed(q, id, what)
  local gone = redis.call('ZREM', q.delayed, id)
  redis.call('HDEL', q.bodies, id)
  redis.call('HDEL', q.released, id)
  redis.call('HDEL', q.ids, id)
  if what == REMOVED then runs.leave(q, id) end
  if what then mark(q.flows, id, what) end
  return gone
end
