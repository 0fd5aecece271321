-- A flow's job enters a stage, now or after its delay ('' none, '+ms', '@ms'). Its id is its own there, whoever has it.
local function put(q, id, now, delay, fields)
  -- A job of no flow, of the same id: it goes first, without it.
  if redis.call('HGET', q.ids, id) == 'delayed' then come(q, id) end
  local due = due_at(delay, now)
  if due > 0 then
    local late = {unpack(fields)}
    late[#late + 1], late[#late + 2] = 'enq', string.format('%.0f', now)
    redis.call('HSET', q.bodies, id, cmsgpack.pack(late))
    redis.call('ZADD', q.delayed, string.format('%.0f', due), id)
    redis.call('HSET', q.ids, id, 'delayed')
    if redis.call('ZRANK', q.delayed, id) == 0 then ring(q.wake) end
  else
    redis.call('HSET', q.ids, id, append(q, fields))
  end
  redis.call('HINCRBY', q.stats, 'enqueued', 1)
  note(q, 'added', id)
  redis.call('ZADD', q.flows, 0, id)
end
