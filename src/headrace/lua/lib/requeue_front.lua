-- Move an entry whose delivery count was lost to the front. Its new count is the next full thousand, so that its token
-- keeps growing, and as many deliveries count as released. So attempts since the last write of the fields are
-- forgotten; the attempts in the fields are not. Earlier releases remain if they may belong to the attempts in the
-- fields: a thousand for each thousand.
local healing = {} -- in a table, as a script has 200 locals at most
function healing.requeue_front(jobs, owner, released, entry, own)
  local releases, attempts = (tonumber(redis.call('HGET', released, entry) or 0) or 0), tonumber(own.attempt or 0)
  local thousands = math.floor(releases / 1000)
  local count = 1000 * (thousands + 1)
  local kept = math.min(releases % 1000, attempts) + 1000 * math.min(thousands, math.floor(attempts / 1000))
  redis.call('XCLAIM', jobs, 'workers', owner, 0, entry, 'RETRYCOUNT', count, 'FORCE', 'JUSTID')
  redis.call('HSET', released, entry, count + kept)
end
-- Forget the deadlines of a group that was lost with all leases and delivery counts: the entries of the stream may have
-- been delivered. (A queue that had no worker yet gets its first group.)
function healing.forget_leases(q)
  local jobs, stats = q.jobs, q.stats
  redis.call('DEL', q.leases)
  if q.held then redis.call('DEL', q.held, q.slots, q.stopped) end
  if q.shares then redis.call('DEL', q.shares, q.ready, q.resting) end -- all jobs come to their lines again
  if redis.call('HEXISTS', stats, 'pulse') == 0 then return end
  local last = redis.call('XREVRANGE', jobs, '+', '-', 'COUNT', 1)[1]
  if last then redis.call('HSET', stats, 'healed', last[1]) end
end
-- Move the next entries from before the group was created again, up to entry *last*, to the front.
function healing.readopt(q, stats, last, limit, budget)
  local woke = redis.call('XPENDING', q.jobs, 'workers', '-', last, limit, 'idle')
  for i = 1, #woke do
    local body = entry_at(budget, q.jobs, woke[i][1])
    if body == false then return end
    local own = body and parse(body[2]) or {}
    healing.requeue_front(q.jobs, front_of(body and level_of(body[2], q.levels.deepest) or 0), q.released, woke[i][1], own)
  end
  limit = limit - #woke
  while limit > 0 do
    local count = fitting(budget, limit)
    if count == 0 then return end
    local read = redis.call('XREADGROUP', 'GROUP', 'workers', 'parked', 'COUNT', count, 'STREAMS', q.jobs, '>')
    local rows = read and read[1][2] or {}
    for i = 1, #rows do
      weigh(budget, rows[i][2])
      local owner = front_of(level_of(rows[i][2], q.levels.deepest))
      if holds.is_after(rows[i][1], last) then
        redis.call('XCLAIM', q.jobs, 'workers', owner, 0, rows[i][1], 'RETRYCOUNT', 0, 'JUSTID')
      else
        healing.requeue_front(q.jobs, owner, q.released, rows[i][1], (parse(rows[i][2])))
      end
    end
    if #rows < count or holds.is_after(rows[#rows][1], last) then
      redis.call('HDEL', stats, 'healed')
      return
    end
    limit = limit - #rows
  end
end
