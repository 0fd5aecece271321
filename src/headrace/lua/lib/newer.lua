-- The new jobs of `lease` in a plain queue, chunk by chunk. fresh: entries and payloads in turn, of first deliveries that have
-- only a payload. They come after the jobs of taken. putting: jobs may be postponed. further: jobs were not looked at.
local newer = {}
function newer.begin(q)
  q.putting = q.keyed or q.order ~= nil
  q.seen, q.further, q.others = 0, q.putting, {} -- others: jobs behind another of their key
  -- postponing a job takes as long as handing out several
  q.most_seen = q.putting and math.max(q.limit, 250) or q.limit + 250
  q.carry = redis.call('EXISTS', q.released) == 1 -- a job may carry releases from an earlier entry
  q.plain = not (q.carry or q.keyed)
end
-- Jobs that were handed out so far come before jobs that are not flat.
function newer.unflatten(q)
  local taken, fresh = q.taken, q.fresh
  for i = 1, #fresh, 2 do taken[#taken + 1] = {fresh[i], {'data', fresh[i + 1]}, 1, 0} end
  q.fresh, q.plain = {}, false
end
function newer.read(q)
  while portion.left(q) > 0 and q.seen < q.most_seen and not q.short do
    local number = portion.fits(q, portion.left(q))
    local rows = number > 0
      and redis.call('XREADGROUP', 'GROUP', 'workers', q.worker, 'COUNT', number, 'STREAMS', q.jobs, '>')
    rows = rows and rows[1][2] or {}
    newer.hand_out(q, rows)
    q.seen = q.seen + #rows
    if #rows < number then
      q.further = false
      return
    end
  end
end
function newer.hand_out(q, rows)
  local entries, taken, fresh, later, dues = q.entries, q.taken, q.fresh, {}, {}
  local count, at = #entries, #fresh
  if q.order then turning.read(q, rows) end
  for i = 1, #rows do
    local entry, fields = rows[i][1], rows[i][2]
    local bytes = #fields[2]
    if q.plain and #fields == 2 and fields[1] == 'data' then -- flat: one table less per job, here and in every client
      count, at = count + 1, at + 2
      entries[count], fresh[at - 1], fresh[at] = entry, entry, fields[2]
    else
      if q.plain then newer.unflatten(q) end
      bytes = size_of(fields)
      local due = q.keyed and pace.admit(q, fields, false)
      if q.order and not turning.takes(q, entry) then
        q.others[#q.others + 1] = entry
      elseif due then
        later[#later + 1] = entry
        dues[#dues + 1], dues[#dues + 2] = math.ceil(due), entry
      else
        local releases = q.carry and tonumber(redis.call('HGET', q.released, entry) or 0) or 0
        count = count + 1
        entries[count] = entry
        taken[#taken + 1] = {entry, fields, 1, releases}
      end
    end
    q.spent = q.spent + bytes
    if bytes > q.largest then q.largest = bytes end
  end
  if q.keyed then older.put_off(q, later, dues, 0) end
end
-- The later levels, while there is room. Raising a job takes as long as handing out several.
function newer.read_levels(q)
  local risen = 0
  for level = 1, portion.left(q) > 0 and not q.short and q.levels.n or 0 do
    newer.unflatten(q) -- they come before the jobs of later levels
    older.front(q, front_of(level))
    while portion.left(q) > 0 and not q.short and q.seen < q.most_seen and risen < 150 do
      local number = math.min(portion.fits(q, portion.left(q)), 150 - risen)
      local page = number > 0 and redis.call('XRANGE', q.levels[level], '-', '+', 'COUNT', number) or {}
      number = raise_level(q, level, 0, page)
      if number == 0 then break end
      risen = risen + number
      newer.read(q)
    end
  end
  q.further = q.further or risen == 150 or q.putting and portion.left(q) > 0 and q.seen >= q.most_seen
end
