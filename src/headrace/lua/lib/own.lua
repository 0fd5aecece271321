-- Which of *entries* are leased by *worker* under exactly these delivery counts: a list of booleans.
local function own(jobs, worker, entries, counts)
  local mine, verdict, n = {}, {}, #entries
  if n > 1 then
    local pending = redis.call('XPENDING', jobs, 'workers', '-', '+', 2 * n + 100, worker)
    for i = 1, #pending do mine[pending[i][1]] = pending[i][4] end
  end
  for i = 1, n do
    local count = mine[entries[i]]
    if not count then
      local row = redis.call('XPENDING', jobs, 'workers', entries[i], entries[i], 1, worker)[1]
      count = row and row[4]
    end
    verdict[i] = count == tonumber(counts[i])
  end
  return verdict
end
