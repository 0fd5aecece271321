-- Leases that have expired though nobody died: of workers that forgot them, of queues without a worker, of foreign
-- consumers. All who look share one cursor, in `stats`, and one step is taken at a time: `<started> <stepped> <cursor>`.
-- @include is_reserved
-- @include levels
-- @include park
local STEP = 15 -- ms between two steps of a sweep: however many look after the queue, it takes no more of the server
-- Whether the leases of all workers last *lease* ms, and none has a deadline of its own.
local function alike(registered, leases, lease)
  if redis.call('EXISTS', leases) == 1 or redis.call('HLEN', registered) > 500 then return false end
  for _, known_as in ipairs(redis.call('HVALS', registered)) do
    if string.match(known_as, '^%d+ (%d+)') ~= lease then return false end
  end
  return true
end
-- Whether XAUTOCLAIM would take what is leased by nobody: it takes from anybody. Behind many of those is unknown.
-- So is what is held back while nobody knows until when: only `page` looks at those.
local function exposed(jobs, limited, levels, cursor, lease)
  local owners = {'parked', 'bell', 'limited'}
  for level = 1, levels do owners[#owners + 1] = front_of(level) end
  for _, owner in ipairs(owners) do
    local rows = redis.call('XPENDING', jobs, 'workers', cursor, '+', 100, owner)
    if #rows == 100 or #rows > 0 and owner == 'limited' and redis.call('EXISTS', limited) == 0 then return true end
    for i = 1, #rows do
      if rows[i][3] >= lease then return true end
    end
  end
  return false
end
-- A page of the pending list, where leases differ: those of it that have expired, at most *limit*, and where to go on.
local function page(jobs, registered, leases, limited, now, lease, cursor, limit)
  local rows, terms, expired = redis.call('XPENDING', jobs, 'workers', cursor, '+', 6 * limit), {}, {}
  local custom = redis.call('EXISTS', leases) == 1
  for i = 1, #rows do
    local entry, owner, idle = rows[i][1], rows[i][2], rows[i][3]
    if not terms[owner] then
      local term = string.match(redis.call('HGET', registered, owner) or '', '^%d+ (%d+)')
      terms[owner] = is_reserved(owner) and math.huge or tonumber(term or lease)
    end
    if idle >= terms[owner] and not (custom and redis.call('ZSCORE', leases, entry)) then
      expired[#expired + 1] = entry
      if #expired == limit then return expired, '(' .. entry end
    elseif owner == 'limited' and idle >= 1000 then
      redis.call('ZADD', limited, 'NX', now, entry) -- somebody lost when it is due
    end
  end
  return expired, #rows == 6 * limit and '(' .. rows[#rows][1] or '-'
end
-- What XAUTOCLAIM takes, at most *limit*, and where to go on. It looks at ten entries per COUNT, and so at 6 x *limit*
-- in all. JUSTID: reclaiming is no delivery.
local function taken_over(jobs, lease, cursor, limit)
  local expired, count = {}, math.max(1, math.floor(limit / 5))
  for _ = 1, 3 do
    local reply = redis.call('XAUTOCLAIM', jobs, 'workers', 'parked', lease, cursor, 'COUNT', count, 'JUSTID')
    for _, entry in ipairs(reply[2]) do expired[#expired + 1] = entry end
    cursor = reply[1]
    if cursor == '0-0' then return expired, '-' end
  end
  return expired, cursor
end
-- Parks what has expired, at most 2 x *limit*. Answers it, and in how many ms to take the next step: nil if that is for
-- others, or the sweep has come to its end.
local function sweep(jobs, registered, leases, limited, stats, levels, now, lease, limit)
  -- Leases with a duration of their own are in the order of their deadlines.
  local due = redis.call('ZRANGEBYSCORE', leases, '-inf', string.format('%.0f', now), 'LIMIT', 0, limit)
  local expired = {}
  for _, entry in ipairs(due) do
    local row = redis.call('XPENDING', jobs, 'workers', entry, entry, 1)[1]
    if row and not is_reserved(row[2]) then expired[#expired + 1] = entry else redis.call('ZREM', leases, entry) end
  end
  park(jobs, leases, stats, expired)
  local further = #due == limit and STEP or nil
  local started, stepped, cursor = string.match(redis.call('HGET', stats, 'sweep') or '', '^(%d+) (%d+) (%S+)$')
  started, stepped, cursor = tonumber(started or 0), tonumber(stepped or 0), cursor or '-'
  if stepped > now then started, stepped = 0, 0 end -- the clock went back
  local term = tonumber(lease)
  if now < (cursor == '-' and started + math.min(500, term / 10) or stepped + STEP) then return expired, further end
  if cursor == '-' then started = now end
  local some
  if alike(registered, leases, lease) and not exposed(jobs, limited, levels, cursor, term) then
    some, cursor = taken_over(jobs, lease, cursor, limit)
    if tonumber(redis.call('HGET', stats, 'levels') or 0) > 0 then park(jobs, leases, stats, some) end
  else
    some, cursor = page(jobs, registered, leases, limited, now, lease, cursor, limit)
    park(jobs, leases, stats, some)
  end
  local pause = #some >= limit / 2 and 5 or STEP -- where so many have expired there are more
  redis.call('HSET', stats, 'sweep', string.format('%.0f %.0f %s', started, now - STEP + pause, cursor))
  for i = 1, #some do expired[#expired + 1] = some[i] end
  local behind = cursor ~= '-' or now - started > 1000 -- a long one is followed by the next at once
  return expired, behind and pause or further
end
