-- A job that was delayed goes to the back of the queue.
local function come(jobs, ids, delayed, bodies, released, stats, id)
  local body = redis.call('HGET', bodies, id)
  redis.call('ZREM', delayed, id)
  redis.call('HDEL', bodies, id)
  if not body then return end
  local own, headers = parse(cmsgpack.unpack(body))
  local entry = redis.call('XADD', jobs, '*', unpack(compose(own, headers)))
  if own.id == id then redis.call('HSET', ids, id, entry) end
  redis.call('HINCRBY', stats, 'added', 1)
  local releases = redis.call('HGET', released, id)
  if releases then
    redis.call('HDEL', released, id)
    redis.call('HSET', released, entry, releases)
  end
end
-- Those that are due, in due order. Answers how many.
local function promote(jobs, ids, delayed, bodies, released, stats, now, limit)
  local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', string.format('%.0f', now), 'LIMIT', 0, limit)
  for _, id in ipairs(due) do come(jobs, ids, delayed, bodies, released, stats, id) end
  return #due
end
