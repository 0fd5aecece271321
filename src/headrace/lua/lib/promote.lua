-- A job that was delayed goes to the back of its level.
local function come(q, id)
  local body = redis.call('HGET', q.bodies, id)
  redis.call('ZREM', q.delayed, id)
  redis.call('HDEL', q.bodies, id)
  if not body then return end
  local own, headers = parse(cmsgpack.unpack(body))
  local entry = append(q, compose(own, headers))
  if own.id == id then redis.call('HSET', q.ids, id, entry) end
  local releases = redis.call('HGET', q.released, id)
  if releases then
    redis.call('HDEL', q.released, id)
    redis.call('HSET', q.released, entry, releases)
  end
end
-- Those that are due, in due order. Answers their ids.
local function promote(q, now, limit)
  local due = redis.call('ZRANGEBYSCORE', q.delayed, '-inf', string.format('%.0f', now), 'LIMIT', 0, limit)
  for _, id in ipairs(due) do come(q, id) end
  return due
end
