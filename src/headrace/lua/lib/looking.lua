-- The first look of a queue with terms: each job that came is put into its line, in memory. See reading, and picking.
local looking = {RAISED = 150}
-- The same for a row of the pending list. Suspects wait for others of their kind.
function looking.put_pending(q, row, owner)
  local entry = row[1]
  if q.watched and suspects.deaths(q.deaths, entry, q.max_attempts) then
    hand_to(q.jobs, SUSPECTS, {entry})
    q.left, q.passed = q.left - 1, true
    return
  end
  local body = redis.call('XRANGE', q.jobs, entry, entry)[1]
  if body then
    if q.order then turning.read(q, {body}) end
    reading.put(q, body, owner, owner == 'idle' and 0 or row[4])
  else
    turning.forget(q, entry)
  end
end
function looking.at_consumer(q, owner)
  local from = '-'
  while q.left > 0 do
    local rows = redis.call('XPENDING', q.jobs, 'workers', from, '+', q.left, owner)
    for i = 1, #rows do
      if reading.fits(q, 1) == 0 then return end
      looking.put_pending(q, rows[i], owner)
    end
    if #rows == 0 then return end
    from = '(' .. rows[#rows][1]
  end
  q.further = true
end
-- Jobs that are due, came back, or woke a reader, and new ones. *consumer*: the one that reads new ones.
function looking.at_all(q, consumer)
  for _, entry in ipairs(q.awake) do
    local row = redis.call('XPENDING', q.jobs, 'workers', entry, entry, 1)[1]
    if row and runs.suspended(row[2]) then
      if reading.fits(q, 1) == 0 then break end
      looking.put_pending(q, row, row[2])
    end
    redis.call('ZREM', q.asleep, entry)
    if row and runs.suspended(row[2]) then redis.call('ZREM', q.leases, entry) end
  end
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', q.limited, '-inf', q.now, 'LIMIT', 0, 100)) do
    local row = redis.call('XPENDING', q.jobs, 'workers', entry, entry, 1, 'limited')[1]
    if row and reading.fits(q, 1) == 0 then break end
    if row then looking.put_pending(q, row, 'limited') end
    redis.call('ZREM', q.limited, entry)
  end
  for level = 0, q.levels.n do
    if redis.call('XPENDING', q.jobs, 'workers', '-', '+', 1, front_of(level))[1] then looking.at_consumer(q, front_of(level)) end
  end
  looking.at_consumer(q, 'idle')
  -- If the group was lost, jobs from before that may not all be in front yet.
  if not (q.healing and redis.call('HEXISTS', q.stats, 'healed') == 1) then reading.at_new(q, consumer) else q.further = true end
end
-- The next jobs of a later level, which move to the jobs stream.
function looking.at_level(q, level, consumer)
  local most = looking.RAISED
  while most > 0 do
    local number = math.min(reading.fits(q, most), most)
    local page = number > 0 and redis.call('XRANGE', q.levels[level], '-', '+', 'COUNT', number) or {}
    if raise_level(q, level, 0, page) == 0 then return end
    most = most - #page
    reading.at_new(q, consumer)
  end
  q.further = true
end
-- Lines of values that were resumed, at most 100.
function looking.at_resumed(q)
  local some, left = q.t.resumed, 100
  while some[1] and left > 0 do
    local path, at, level = unpack(some[1])
    local member = redis.call('ZRANGEBYLEX', q.lines, at, '(' .. level .. path .. '\255', 'LIMIT', 0, 1)[1]
    if member then
      local line = string.match(member, '^(.*) ')
      some[1][2] = '[' .. (line or member) .. '!'
      if line then q.coming[#q.coming + 1] = picking.line(q, line) end
      left = left - 1
    elseif level < q.levels.n then
      some[1] = {path, '[' .. level + 1 .. path, level + 1}
    else
      table.remove(some, 1)
    end
  end
  if some[1] then
    q.passed = true
    redis.call('HSET', q.terms, 'resumed', cmsgpack.pack(some))
  else
    redis.call('HDEL', q.terms, 'resumed')
  end
end
-- Lines for which there may be a slot or a token now: the first of a limit for each slot that was given back; where limits
-- have changed, as many as have slots; and lines that have rested.
function looking.at_stopped(q, freed)
  q.has_stopped = redis.call('EXISTS', q.stopped) == 1
  if q.t.resumed then looking.at_resumed(q) end
  for i = 1, q.has_stopped and #freed or 0 do picking.let_in(q, freed[i]) end
  local all = true
  if q.has_stopped and q.t.again then
    local rows = redis.call('ZRANGEBYLEX', q.stopped, q.t.again == '' and '-' or '(' .. q.t.again, '+', 'LIMIT', 0, 100)
    local let = {}
    for i = 1, #rows do
      local slot = holds.slot_in(rows[i])
      if slot then
        local line = picking.line(q, string.sub(rows[i], #slot + 19))
        local there = q.slots_at[slot]
        if picking.may_run(q, line) and (not there or there.used + (let[slot] or 0) < there.most) then
          let[slot] = (let[slot] or 0) + 1
          picking.let(q, slot, rows[i])
        end
      end
    end
    if #rows == 100 then
      all, q.passed = false, true
      redis.call('HSET', q.terms, 'again', rows[100])
    end
  end
  if q.t.again and all then redis.call('HDEL', q.terms, 'again') end
  local rested = redis.call('ZRANGEBYSCORE', q.resting, '-inf', q.now + EARLY, 'LIMIT', 0, 100)
  q.has_resting = #rested > 0 or redis.call('EXISTS', q.resting) == 1
  for i = 1, #rested do q.coming[#q.coming + 1] = picking.line(q, rested[i]) end
end
