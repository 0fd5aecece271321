-- Expired leases of owners that are alive: of workers that forgot them, of queues without a worker, of foreign
-- consumers. All callers share one cursor, in `stats`, and one step is taken at a time: `<started> <stepped> <cursor>`.
local STEP = 15 -- ms between two steps of a sweep: the server's load does not grow with the number of workers
-- Whether the leases of all workers last *lease* ms, and none has a deadline of its own.
local function alike(registered, leases, lease)
  if redis.call('EXISTS', leases) == 1 or redis.call('HLEN', registered) > 500 then return false end
  for _, text in ipairs(redis.call('HVALS', registered)) do
    if string.match(text, '^%d+ (%d+)') ~= lease then return false end
  end
  return true
end
-- Whether XAUTOCLAIM might take entries that are not leased: it takes from any consumer. Beyond the first many, such
-- entries are unknown, and so are entries that a limit holds back without a due time: only `page` reads them.
local function exposed(q, cursor, lease)
  for _, owner in ipairs({'parked', SUSPECTS, 'idle', 'limited', 'behind'}) do
    local rows = redis.call('XPENDING', q.jobs, 'workers', cursor, '+', 100, owner)
    if #rows == 100 or #rows > 0 and owner == 'limited' and redis.call('EXISTS', q.limited) == 0 then return true end
    for i = 1, #rows do
      if rows[i][3] >= lease then return true end
    end
  end
  return false
end
-- Whether a lease of *owner* that runs out is a death. It is one if the owner is gone, or held other jobs, as then it
-- says little about this job. A lease that runs out alone, while its owner lives, spends an attempt. *number*: of its
-- jobs, if it is known.
local function is_death(q, now, owner, number)
  local until_when = tonumber(redis.call('ZSCORE', q.workers, owner) or now)
  return until_when < now or (number or #redis.call('XPENDING', q.jobs, 'workers', '-', '+', 2, owner)) > 1
end
-- Whether any lease that runs out is a death; nil if that depends on its owner, which XAUTOCLAIM does not tell.
local function all_are_deaths(q, now)
  local all
  for _, consumer in ipairs(redis.call('XPENDING', q.jobs, 'workers')[4] or {}) do
    if not is_reserved(consumer[1]) then
      local one = is_death(q, now, consumer[1], tonumber(consumer[2]))
      if all ~= nil and all ~= one then return nil end
      all = one
    end
  end
  return all or false
end
-- For leases that differ, read a page of the pending list: its expired leases, at most *limit*, the next cursor, and
-- which of them are deaths.
local function page_of_all(q, now, lease, cursor, limit)
  local rows, terms, expired = redis.call('XPENDING', q.jobs, 'workers', cursor, '+', 6 * limit), {}, {}
  local died, of_owner = {}, {}
  local custom = redis.call('EXISTS', q.leases) == 1
  for i = 1, #rows do
    local entry, owner, idle = rows[i][1], rows[i][2], rows[i][3]
    if not terms[owner] then
      local term = string.match(redis.call('HGET', q.registered, owner) or '', '^%d+ (%d+)')
      terms[owner] = is_reserved(owner) and math.huge or tonumber(term or lease)
    end
    if idle >= terms[owner] and not (custom and redis.call('ZSCORE', q.leases, entry)) then
      expired[#expired + 1] = entry
      if of_owner[owner] == nil then of_owner[owner] = is_death(q, now, owner) end
      died[entry] = of_owner[owner]
      if #expired == limit then return expired, '(' .. entry, died end
    elseif owner == 'limited' and idle >= 1000 then
      redis.call('ZADD', q.limited, 'NX', now, entry) -- its due time was lost
    end
  end
  return expired, #rows == 6 * limit and '(' .. rows[#rows][1] or '-', died
end
-- In a queue with terms, the pending list has all jobs in lines, too. Then read a page of the expired leases of each
-- consumer. The cursor is '<entry> <consumer>', which older versions take for none; '-' at the end.
local function page_of_each(q, now, lease, cursor, limit)
  local function escaped(owner) return (string.gsub(owner, '[%s%%]', function(c) return string.format('%%%02x', string.byte(c)) end)) end
  local consumers, expired, left, died = redis.call('XPENDING', q.jobs, 'workers')[4] or {}, {}, 6 * limit, {}
  local custom, from, last = redis.call('EXISTS', q.leases) == 1, string.match(cursor, '^(%S+) (%S+)$')
  local at = 1
  while last and consumers[at] and escaped(consumers[at][1]) ~= last do at = at + 1 end
  if not consumers[at] then at, from = 1, nil end -- this consumer has nothing any more
  while consumers[at] do
    local owner, rows = consumers[at][1], {}
    if not is_reserved(owner) then
      local term = string.match(redis.call('HGET', q.registered, owner) or '', '^%d+ (%d+)') or lease
      rows = redis.call('XPENDING', q.jobs, 'workers', 'IDLE', term, from or '-', '+', left, owner)
    elseif owner == 'limited' then
      for _, row in ipairs(redis.call('XPENDING', q.jobs, 'workers', 'IDLE', 1000, '-', '+', limit, owner)) do
        redis.call('ZADD', q.limited, 'NX', now, row[1]) -- its due time was lost
      end
    end
    for i = 1, #rows do
      local entry = rows[i][1]
      if not (custom and redis.call('ZSCORE', q.leases, entry)) then
        expired[#expired + 1] = entry
        died[entry] = is_death(q, now, owner, tonumber(consumers[at][2]))
      end
      if #expired == limit or i == left then return expired, '(' .. entry .. ' ' .. escaped(owner), died end
    end
    left, at, from = math.max(1, left - 1 - #rows), at + 1, nil
  end
  return expired, '-', died
end
-- Take expired entries by XAUTOCLAIM, at most *limit*, and answer the next cursor. It reads ten entries per COUNT, so
-- 6 x *limit* in all. JUSTID: reclaiming is no delivery. *died*: whether all of them are deaths.
local function taken_over(q, lease, cursor, limit, died)
  local expired, count = {}, math.max(1, math.floor(limit / 5))
  for _ = 1, 3 do
    local reply = redis.call('XAUTOCLAIM', q.jobs, 'workers', 'parked', lease, cursor, 'COUNT', count, 'JUSTID')
    for _, entry in ipairs(reply[2]) do expired[#expired + 1] = entry end
    cursor = reply[1] ~= '0-0' and reply[1] or '-'
    if cursor == '-' then break end
  end
  local apart = {}
  for entry in pairs(suspects.count_deaths(q.deaths, expired, died)) do apart[#apart + 1] = entry end
  hand_to(q.jobs, SUSPECTS, apart)
  return expired, cursor
end
-- Park expired entries, at most *limit*; if they must be read (see finish), at most half of it, and within the *budget*.
-- Answers their number, the ms until the next step (nil if other callers take it, or the sweep has ended), and their
-- ids if there are listeners (*listening*).
local function sweep(q, now, lease, limit, budget, listening)
  local unread = not listening and tonumber(redis.call('HGET', q.stats, 'levels') or 0) == 0
  if not unread then limit = math.ceil(limit / 2) end
  -- Leases with a duration of their own are in the order of their deadlines. They say nothing about their holders.
  local due = redis.call('ZRANGEBYSCORE', q.leases, '-inf', string.format('%.0f', now), 'LIMIT', 0, limit)
  local expired = {}
  for _, entry in ipairs(due) do
    local row = redis.call('XPENDING', q.jobs, 'workers', entry, entry, 1)[1]
    if row and not is_reserved(row[2]) then expired[#expired + 1] = entry else redis.call('ZREM', q.leases, entry) end
  end
  local found = #expired
  local ids = finish(q, expired, {budget = budget, listening = listening})
  local moved, further = #expired, (#due == limit or #expired < found) and STEP or nil
  if moved == limit or moved < found then return moved, further, ids end
  local started, stepped, cursor = string.match(redis.call('HGET', q.stats, 'sweep') or '', '^(%d+) (%d+) (%S+ ?%S*)$')
  started, stepped, cursor = tonumber(started or 0), tonumber(stepped or 0), cursor or '-'
  if stepped > now then started, stepped = 0, 0 end -- the clock went back
  local term = tonumber(lease)
  if now < (cursor == '-' and started + math.min(500, term / 10) or stepped + STEP) then return moved, further, ids end
  if cursor == '-' then started = now end
  local lines = redis.call('EXISTS', q.lines) == 1
  if not lines and string.find(cursor, ' ', 1, true) then cursor = '-' end
  local cut, from, died = false, cursor, nil
  if not lines and unread and alike(q.registered, q.leases, lease) and not exposed(q, cursor, term) then
    died = all_are_deaths(q, now)
  end
  if died ~= nil then
    expired, cursor = taken_over(q, lease, cursor, limit - moved, died)
    finish(q, expired, {parked = true})
  else
    expired, cursor, died = (lines and page_of_each or page_of_all)(q, now, lease, cursor, limit - moved)
    found = #expired
    for i, id in ipairs(finish(q, expired, {died = died, budget = budget, listening = listening})) do ids[moved + i] = id end
    cut = #expired < found
    if cut then cursor = lines and from or #expired > 0 and '(' .. expired[#expired] or from end
  end
  local pause = #expired >= limit / 2 and 5 or STEP -- after so many expired leases there are more
  redis.call('HSET', q.stats, 'sweep', string.format('%.0f %.0f %s', started, now - STEP + pause, cursor))
  local on = cut or cursor ~= '-' or now - started > 1000 -- after a long sweep the next one begins at once
  return moved + #expired, on and pause or further, ids
end
