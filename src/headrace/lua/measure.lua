-- measure: count the jobs in each state, and tell how long the oldest of the jobs that are next has been in the queue.
-- KEYS   jobs (stream), delayed (zset), blocked (hash), dead (stream), stats (hash), levels...
-- ARGV   (none)
-- REPLY  the reply of counts, and then the age in ms, 0 if nothing waits
-- COST   20 us + 0.1 us per consumer
-- Jobs that are next: the first one parked, and the first new one, of each level, as far as they are 1 MiB.
-- @include clock
-- @include delivered
-- @include fields
-- @include levels
-- @include page
-- @include tally
level_streams(stats, levels)
local reply = tally({jobs = jobs, delayed = delayed, blocked = blocked, dead = dead, stats = stats, levels = levels})
local now = clock()
local since, budget = now, new_budget()
local function look(stream, from, to)
  local row = stretch(budget, 'XRANGE', stream, from, to, 1)[1]
  if row then since = math.min(since, tonumber(parse(row[2]).enq) or tonumber(string.match(row[1], '^%d+'))) end
end
local function first(owner)
  local row = redis.pcall('XPENDING', jobs, 'workers', '-', '+', 1, owner)[1]
  if row then look(jobs, row[1], row[1]) end
end
first('bell')
look(jobs, '(' .. (delivered(jobs) or '0-0'), '+')
for level = 0, levels.n do
  first(front_of(level))
  if level > 0 then look(levels[level], '-', '+') end
end
reply[#reply + 1] = math.max(0, now - since)
return reply
