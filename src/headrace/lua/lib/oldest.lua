-- The age in ms of the oldest of the next jobs: the first parked job and the first new job of each level, as far as the
-- *budget* goes; 0 if no job waits. *holding*: the consumers that hold entries.
local function age_of_next(jobs, levels, budget, holding)
  local now = clock()
  local since = now
  local function look(stream, from, to)
    local row = stretch(budget, stream, from, to, 1)[1]
    if row then since = math.min(since, tonumber(parse(row[2]).enq) or tonumber(string.match(row[1], '^%d+'))) end
  end
  local function first(owner)
    local row = holding[owner] and redis.pcall('XPENDING', jobs, 'workers', '-', '+', 1, owner)[1]
    if row then look(jobs, row[1], row[1]) end
  end
  first('idle')
  first(SUSPECTS)
  first('parked:front')
  first('parked:new')
  look(jobs, '(' .. (delivered(jobs) or '0-0'), '+')
  for level = 0, levels.n do
    first(front_of(level))
    if level > 0 then look(levels[level], '-', '+') end
  end
  return math.max(0, now - since)
end
