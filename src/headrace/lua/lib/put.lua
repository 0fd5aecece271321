-- A flow's job enters a stage, now or after its delay ('' none, '+ms', '@ms'). Its id is its own there, whoever has it.
local function put(q, id, now, delay, fields)
  if redis.call('HGET', q.ids, id) == 'delayed' then -- a job of no flow, of the same id: it goes first, without it
    local body = redis.call('HGET', q.bodies, id)
    redis.call('ZREM', q.delayed, id)
    redis.call('HDEL', q.bodies, id)
    if body then
      local entry = redis.call('XADD', q.jobs, '*', unpack(cmsgpack.unpack(body)))
      redis.call('HINCRBY', q.stats, 'added', 1)
      local releases = redis.call('HGET', q.released, id)
      if releases then
        redis.call('HDEL', q.released, id)
        redis.call('HSET', q.released, entry, releases)
      end
    end
  end
  local due = due_at(delay, now)
  if due > 0 then
    local late = {unpack(fields)}
    late[#late + 1], late[#late + 2] = 'enq', string.format('%.0f', now)
    redis.call('HSET', q.bodies, id, cmsgpack.pack(late))
    redis.call('ZADD', q.delayed, string.format('%.0f', due), id)
    redis.call('HSET', q.ids, id, 'delayed')
    if redis.call('ZRANK', q.delayed, id) == 0 then ring(q.wake) end
  else
    redis.call('HSET', q.ids, id, redis.call('XADD', q.jobs, '*', unpack(fields)))
    redis.call('HINCRBY', q.stats, 'added', 1)
  end
  redis.call('HINCRBY', q.stats, 'enqueued', 1)
  note(q, 'added', id)
  redis.call('ZADD', q.flows, 0, id)
end
