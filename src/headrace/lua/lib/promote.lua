-- A job that was delayed goes to the back of its level.
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
-- Those that are due, in due order, up to 1 MiB of them. Answers their ids.
local function promote(q, now, limit)
  local due, bytes = redis.call('ZRANGEBYSCORE', q.delayed, '-inf', string.format('%.0f', now), 'LIMIT', 0, limit), 0
  for i, id in ipairs(due) do
    bytes = bytes + redis.call('HSTRLEN', q.bodies, id)
    if i > 1 and bytes > 1048576 then return {unpack(due, 1, i - 1)} end
    promote_one(q, id)
  end
  return due
end
