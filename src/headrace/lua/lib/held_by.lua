-- Rows of a pending list; none without a group: a failover or a FLUSHALL removes it with all leases.
local function pending_rows(...)
  local rows = redis.pcall('XPENDING', ...)
  if not rows.err then return rows end
  return string.find(rows.err, 'NOGROUP', 1, true) and {} or redis.call('XPENDING', ...)
end
-- The first and the last of *entries*, which has at least one.
local function ends_of(entries)
  local first, last, low, high = entries[1], entries[1], nil, nil
  for i = 1, #entries do
    local ms, seq = string.match(entries[i], '^(%d+)-(%d+)$')
    local at = {tonumber(ms) or 0, tonumber(seq) or 0}
    if not low or at[1] < low[1] or (at[1] == low[1] and at[2] < low[2]) then first, low = entries[i], at end
    if not high or at[1] > high[1] or (at[1] == high[1] and at[2] > high[2]) then last, high = entries[i], at end
  end
  return first, last
end
-- Which of *entries* does *worker* lease with exactly these delivery counts? A list of booleans.
local function held_by(jobs, worker, entries, counts)
  local mine, verdict, n = {}, {}, #entries
  if n > 1 then
    local first, last = ends_of(entries)
    local rows = pending_rows(jobs, 'workers', first, last, 2 * n + 100, worker)
    for i = 1, #rows do mine[rows[i][1]] = rows[i][4] end
  end
  for i = 1, n do
    local count = mine[entries[i]]
    if not count then
      local row = pending_rows(jobs, 'workers', entries[i], entries[i], 1, worker)[1]
      count = row and row[4]
    end
    verdict[i] = count == tonumber(counts[i])
  end
  return verdict
end
