-- Rows of a pending list; none when there is no group (a failover or a FLUSHALL took it, and all leases with it).
local function pending(...)
  local rows = redis.pcall('XPENDING', ...)
  if not rows.err then return rows end
  return string.find(rows.err, 'NOGROUP', 1, true) and {} or redis.call('XPENDING', ...)
end
-- Which of *entries* are leased by *worker* under exactly these delivery counts: a list of booleans.
local function own(jobs, worker, entries, counts)
  local mine, verdict, n = {}, {}, #entries
  if n > 1 then
    local rows = pending(jobs, 'workers', '-', '+', 2 * n + 100, worker)
    for i = 1, #rows do mine[rows[i][1]] = rows[i][4] end
  end
  for i = 1, n do
    local count = mine[entries[i]]
    if not count then
      local row = pending(jobs, 'workers', entries[i], entries[i], 1, worker)[1]
      count = row and row[4]
    end
    verdict[i] = count == tonumber(counts[i])
  end
  return verdict
end
