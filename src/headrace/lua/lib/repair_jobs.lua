-- The walks of `repair` through streams: the jobs stream with its groups and the pending list, and the streams of later levels. See
-- repair_reading.
-- The place that the group should have: before *last*, the end of the stream, and not before the delivered entries.
local function right_place(last_handed, last)
  local right = holds.is_after(last_handed, last) and last or last_handed
  local highest = redis.call('XPENDING', q.jobs, 'workers')[3]
  return highest and holds.is_after(highest, right) and highest or right
end
-- The groups exist, at their places.
local function mend_group(last)
  local ours = group_of(q.jobs)
  local theirs = group_of(q.wake)
  if theirs and not ours then -- both are created together; without both no job was leased yet
    redis.call('XGROUP', 'CREATE', q.jobs, 'workers', '0', 'MKSTREAM')
    healing.forget_leases(q)
    mended('groups')
  elseif ours and not theirs then
    redis.call('XGROUP', 'CREATE', q.wake, 'workers', '0', 'MKSTREAM')
    mended('groups')
  end
  if not ours then return end
  local last_handed = ours['last-delivered-id']
  local right = right_place(last_handed, last)
  if right ~= last_handed then
    redis.call('XGROUP', 'SETID', q.jobs, 'workers', right)
    mended('groups')
  end
end
local function park_stranded(entry, own, level)
  healing.requeue_front(q.jobs, front_of(level), q.released, entry, own)
  redis.call('ZREM', q.leases, entry)
  mended('stranded')
end
-- A suspended run has a deadline of its own that never comes, and a moment when it is due: now, if that was lost.
local function mend_suspended(entry)
  redis.call('ZADD', q.leases, 'inf', entry)
  if not redis.call('ZSCORE', q.asleep, entry) then
    redis.call('ZADD', q.asleep, string.format('%.0f', now), entry)
    wake_many(q.wake, 1)
    mended('undated')
  end
end
-- A leased job of a queue with terms holds its slots.
local function hold_slots(entry, idle, line, values)
  local terms = q.agreed_on
  local place = holds.place(entry)
  local text = string.format('%.3f %.0f 1 %d:%s', now - idle, terms.mean, #line, line)
  for _, slot in ipairs(terms.slots) do
    if values[slot.at] then
      local name = slot.key .. holds.lp(values[slot.at])
      text = text .. holds.lp(name)
      redis.call('ZADD', q.slots, 0, name .. ' ' .. place)
    end
  end
  redis.call('HSET', q.held, entry, text)
  q.holding = true
  mended('slots')
end
-- In a queue with terms each leased job holds its slots, and each job of the line consumers has a place in a line.
-- Otherwise it goes to the front: the next look puts it into its line.
q.agreed_on = agreed.read(q.terms)
local function mend_terms(row, fields)
  local entry, owner, idle = row[1], row[2], row[3]
  if not q.agreed_on or is_reserved(owner) and not is_in_line(owner) then return end
  local values, cost = agreed.values(q.agreed_on, fields)
  local level = level_of(fields, q.levels.n)
  local line = agreed.line(q.agreed_on, level, values)
  if not is_in_line(owner) then
    if redis.call('HEXISTS', q.held, entry) == 0 then hold_slots(entry, idle, line, values) end
    return
  end
  local member = line .. ' ' .. holds.place(entry) .. (is_lined(owner) and '' or '+') .. holds.cost(cost)
  if redis.call('ZSCORE', q.lines, member) then return end
  local count = is_lined(owner) and {'RETRYCOUNT', 0, 'JUSTID'} or {'JUSTID'}
  redis.call('XCLAIM', q.jobs, 'workers', front_of(level), 0, entry, unpack(count))
  wake_many(q.wake, 1)
  mended('stranded')
end
-- How many rows of a page are not after *upto*.
local function up_to(page, upto)
  local number = #page
  while number > 0 and holds.is_after(page[number][1], upto) do number = number - 1 end
  return number
end
-- A page of the stream, and the same range of the pending list. The cursor also has the end: 'from end'.
local function walk_jobs()
  local from, last = string.match(cursor, '^(%S+) (%S+)$')
  if not from then
    from = '-'
    last = last_of(q.jobs)
    mend_group(last)
    if not last then return '' end
  end
  local group = group_of(q.jobs)
  local last_handed = group and group['last-delivered-id']
  if dry and last_handed then last_handed = right_place(last_handed, last) end
  local page, more = stretch(budget, q.jobs, from, last, limit)
  local rows = last_handed and redis.call('XPENDING', q.jobs, 'workers', from, last, limit) or {}
  looked = looked + math.max(#page, #rows)
  local upto = last -- the end of the shorter list
  if more then upto = page[#page][1] end
  if #rows == limit and holds.is_after(upto, rows[limit][1]) then upto = rows[limit][1] end

  local entries = {}
  local pages = up_to(page, upto)
  for i = 1, pages do entries[page[i][1]] = page[i][2] end
  local pending = {}
  for i = 1, up_to(rows, upto) do
    local entry = rows[i][1]
    pending[entry] = true
    if not entries[entry] then
      depart(q, {entry}, {})
      mended('dangling')
    elseif runs.suspended(rows[i][2]) then
      mend_suspended(entry)
    else
      mend_terms(rows[i], entries[entry])
    end
  end

  local handed = last_handed
  local stranded = 0
  for i = 1, pages do
    local entry, fields = page[i][1], page[i][2]
    local plain = #fields == 2 and fields[1] == 'data'
    local own = plain and {} or parse(fields)
    if handed and not pending[entry] then
      if holds.is_after(entry, last_handed) then
        handed = nil -- nor were the entries after it
      else
        park_stranded(entry, own, level_of(fields, q.levels.n))
        stranded = stranded + 1
      end
    end
    if own.id and own.id ~= '' and own.id ~= entry then take_id_early(own.id, entry) end
  end
  wake_many(q.wake, stranded)
  return (more or #rows == limit) and '(' .. upto .. ' ' .. last or ''
end
-- A page of the stream of a later level: only the ids of its jobs can be wrong.
local function walk_level(level)
  return function()
    local page, more = stretch(budget, q.levels[level], cursor == '0' and '-' or cursor, '+', limit)
    looked = looked + #page
    for i = 1, #page do
      local id = parse(page[i][2]).id
      if id and id ~= '' then take_id_early(id, page[i][1] .. '.' .. level) end
    end
    return more and '(' .. page[#page][1] or ''
  end
end
