-- The first of *n* nonces, which nothing else of this run has, had, or will have; nor has what an earlier run of its id left.
-- @include due_at
-- @include levels
-- @include marks
-- @include note
-- @include promote
-- @include wake_one
local function nonces(run, now, n)
  local last = redis.call('HINCRBY', run, 'nonce', n)
  if last == n then -- there were none
    last = now * 512 % (NONCES / 2) + LEAST_NONCE + n
    redis.call('HSET', run, 'nonce', string.format('%.0f', last))
  end
  return last - n + 1
end
-- A flow's job enters a stage, now or after its delay ('' none, '+ms', '@ms'). Its id is its own there, whoever has it.
local function enter_stage(q, id, now, delay, fields, nonce)
  -- A job of no flow, of the same id: it goes first, without it.
  if redis.call('HGET', q.ids, id) == 'delayed' then promote_one(q, id) end
  local due, mine = due_at(delay, now), {unpack(fields)}
  mine[#mine + 1], mine[#mine + 2] = 'headrace-nonce', string.format('%.0f', nonce)
  if due > 0 then
    mine[#mine + 1], mine[#mine + 2] = 'enq', string.format('%.0f', now)
    redis.call('HSET', q.bodies, id, cmsgpack.pack(mine))
    redis.call('ZADD', q.delayed, string.format('%.0f', due), id)
    redis.call('HSET', q.ids, id, 'delayed')
    if redis.call('ZRANK', q.delayed, id) == 0 then wake_one(q.wake) end
  else
    redis.call('HSET', q.ids, id, append(q, mine))
  end
  redis.call('HINCRBY', q.stats, 'enqueued', 1)
  note(q, 'added', id)
  set_mark(q.flows, id, NOTHING, nonce)
end
