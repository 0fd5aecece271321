-- The jobs of `lease` that are older than new ones, in a plain queue: the jobs of a predecessor, suspects, jobs that have the
-- turn, runs that are due, parked jobs, and jobs that woke a reader.
local older = {}
-- Whether there may be any. *heir*: the worker whose jobs this one takes over, if any.
function older.some(q, heir)
  q.turn = redis.call('ZRANGEBYSCORE', q.limited, '-inf', q.now, 'LIMIT', 0, 1)[1]
  q.due = redis.call('ZRANGEBYSCORE', q.asleep, '-inf', q.now, 'LIMIT', 0, 100)
  local lost = q.state[3] -- jobs from before the group was lost
  if lost then
    healing.readopt(q, q.stats, lost, math.min(q.limit, 100), new_budget(262144))
    q.parked = redis.call('XPENDING', q.jobs, 'workers', '-', '+', 1, 'parked')
  end
  local idle = redis.call('XPENDING', q.jobs, 'workers', '-', '+', 1, 'idle')[1]
  return heir or q.watched or q.turn or q.due[1] or idle or #q.parked > 0 or q.keyed or q.order or q.levels.n > 0
end
-- Let jobs wait for their turn: no delivery, and no attempt spent. *count*: deliveries so far, nil if they waited before.
function older.put_off(q, some, dues, count)
  if #some == 0 then return end
  redis.call('ZADD', q.limited, unpack(dues))
  if not count then return end
  hand_to(q.jobs, 'limited', some, count)
end
-- Read a job of a pending list, once. *waited*: whether it waited for its turn.
function older.claim_admitted(q, row, count, waited)
  local entry = row[1]
  local body = redis.call('XRANGE', q.jobs, entry, entry)[1]
  local due = body and pace.admit(q, body[2], waited)
  if body and q.order then turning.read(q, {body}) end
  if not body then
    turning.forget(q, entry)
  elseif q.order and not turning.takes(q, entry) then
    weigh_job(q, body[2])
    redis.call('ZREM', q.limited, entry)
    hand_to(q.jobs, 'behind', {entry}, count)
  elseif due then
    weigh_job(q, body[2])
    older.put_off(q, {entry}, {math.ceil(due), entry}, not waited and count)
  else
    redis.call('ZREM', q.limited, entry)
    redis.call('XCLAIM', q.jobs, 'workers', q.worker, 0, entry, 'RETRYCOUNT', count + 1, 'JUSTID')
    leasing.hand_out(q, entry, body[2], count + 1)
  end
end
-- Hand out the rows of a pending list that have the turn. *idle*: they woke a reader, which is no delivery.
function older.claim(q, rows, from, to, idle)
  if q.keyed then
    for i = from, to do older.claim_admitted(q, rows[i], idle and 0 or rows[i][4], false) end
    return
  end
  local list, counts, there = {}, {}, {}
  for i = from, to do
    list[#list + 1] = rows[i][1]
    counts[rows[i][1]] = idle and 1 or rows[i][4] + 1
  end
  if idle then list[#list + 1] = 'RETRYCOUNT'; list[#list + 1] = 1 end
  local got = redis.call('XCLAIM', q.jobs, 'workers', q.worker, 0, unpack(list))
  if q.order then turning.read(q, got) end
  for i = 1, #got do
    if got[i] then
      local entry, fields = got[i][1], got[i][2]
      there[entry] = true
      if not q.order or turning.takes(q, entry) then
        leasing.hand_out(q, entry, fields, counts[entry])
      else
        weigh_job(q, fields)
        hand_to(q.jobs, 'behind', {entry}, counts[entry] - 1)
      end
    end
  end
  for i = from, to do
    if not there[rows[i][1]] then turning.forget(q, rows[i][1]) end
  end
end
-- The jobs of a consumer that waits with them. They take the places of removed and dead jobs, or new jobs would overtake
-- them; for a bounded number of rounds.
function older.front(q, owner)
  local seen = 0
  while portion.left(q) > 0 do
    local asked = portion.left(q)
    local rows = redis.call('XPENDING', q.jobs, 'workers', '-', '+', asked, owner)
    local at = 1
    while at <= #rows do
      local number = portion.fits(q, #rows - at + 1)
      if number == 0 then return end
      older.claim(q, rows, at, at + number - 1, owner == 'idle')
      at = at + number
    end
    seen = seen + #rows
    if #rows < asked or seen > q.limit + 100 then return end
  end
end
-- One suspect that has waited for *idle* ms, alone.
function older.suspect(q, idle)
  local row, most = suspects.next(q, idle), q.limit
  q.limit = 1
  for _ = 1, row and 10 or 0 do
    older.claim(q, {row}, 1, 1, false)
    q.passed, row = true, #q.entries == 0 and suspects.next(q, idle) or nil
    if not row then break end
  end
  q.apart = #q.entries > 0
  if not q.apart then q.limit = most end
end
-- Jobs that waited for their turn.
function older.due(q)
  for _, entry in ipairs(q.turn and pace.oldest_due(q.limited, q.now, 100) or {}) do
    if portion.left(q) == 0 then break end
    local row = redis.call('XPENDING', q.jobs, 'workers', entry, entry, 1, 'limited')[1]
    if row and portion.fits(q, 1) == 0 then break end
    if row and q.watched and suspects.deaths(q.deaths, entry, q.max_attempts) then
      hand_to(q.jobs, SUSPECTS, {entry})
      redis.call('ZREM', q.limited, entry)
      q.passed = true
    elseif row then
      older.claim_admitted(q, row, row[4], true)
    else
      redis.call('ZREM', q.limited, entry)
    end
  end
end
-- Suspended runs that are due.
function older.awake(q)
  for _, entry in ipairs(q.due) do
    local row = redis.call('XPENDING', q.jobs, 'workers', entry, entry, 1)[1]
    local suspended = row and runs.suspended(row[2])
    if portion.left(q) == 0 or suspended and portion.fits(q, 1) == 0 then break end
    redis.call('ZREM', q.asleep, entry)
    if suspended then
      redis.call('ZREM', q.leases, entry)
      older.claim_admitted(q, row, row[4], false)
    end
  end
end
