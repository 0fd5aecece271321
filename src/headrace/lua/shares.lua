-- shares: show the values of a queue with terms that had the most run time, and the values that have waited for longest.
-- KEYS   stats (hash), jobs (stream)
-- ARGV   most int, cursor
-- REPLY  {structure, ms, rows, next, paused}: ms of run time of all shown values · each row: {path, ms, weight, running, waiting, p50,
--        p95, own, age, paused flag}: path as in a node without its level; running and waiting jobs; ms that jobs waited from when they
--        might run to their lease, the median and the 95th percentile, about, as texts ·
--        own: the limit of this value alone, if a limit has the header of `fair`; 0 for none · age: ms that the oldest
--        waiting job waits, '' for none · next: the next call's cursor, '' for none ·
--        paused: the paths of paused values, unless next was given
-- COST   20 us + 20 us per value and level, at most 20, + 3 us per line, at most 1,000
-- The run time is halved each minute. cursor: '' for the values with the most run time alone; '-' for these and the first
-- lines; then as it was answered, for the values that have waited for longest among the next lines: the caller compares.
-- If fewer values had run time of late, others follow that have jobs, in no order. A job that was cancelled leaves its place
-- in a line for a while: then 5,000 places are compared with the jobs in lines, if these are
-- 2,000 at most, for 5 ms; with more jobs the number is too high until upkeep has tidied. Of a value with the most run time,
-- 100 lines of each level are asked for their oldest job.
local t = agreed.read(terms)
local paused = (cursor == '' or cursor == '-') and agreed.paused(terms) or {}
if not t then return {'', '0', {}, '', paused} end
most = math.max(0, math.min(most, 10))
local values, known = {}, {}
local function show(path, ms)
  known[path] = {path = path, ms = ms, first = false}
  values[#values + 1] = known[path]
end
local first = cursor == '' or cursor == '-'
if not first and not string.find(cursor, '^[%[(]') then error('ARGUMENT ' .. cursor .. ': no such place', 0) end
local heaviest = first and most > 0 and redis.call('ZREVRANGE', busy, 0, most - 1, 'WITHSCORES') or {}
for i = 1, #heaviest, 2 do show(heaviest[i], heaviest[i + 1]) end
if first and #values < most then -- values whose jobs run, and none has ended
  local found = redis.call('HSCAN', shares, 0, 'MATCH', '[0-9]*', 'COUNT', 200)[2]
  for i = 1, #found, 2 do
    local path, _, ends_at = string.sub(found[i], 2), agreed.split(found[i])
    if #ends_at == t.depth and not known[path] and #values < most then show(path, '0') end
  end
end
-- The first places of the lines from a member of `lines` on, each given to *take*. Answers where to go on, nil at the end.
local function each_line(at, to, number, take)
  for _ = 1, number do
    local member = redis.call('ZRANGEBYLEX', lines, at, to, 'LIMIT', 0, 1)[1]
    if not member then return nil end
    local line, place = string.match(member, '^(.*) (%l%d+%l%d+)')
    at = line and '[' .. line .. '!' or '(' .. member
    if line then take(line, place) end
  end
  return at
end
-- The place of the first job that waits in a line, of its first ten places: nil if none does.
local function first_of(line, place)
  for try = 0, 1 do
    local page = try == 0 and {line .. ' ' .. place} or redis.call('ZRANGEBYLEX', lines, '(' .. line .. ' ' .. place, '(' .. line .. '!', 'LIMIT', 0, 10)
    for i = 1, #page do
      local found = string.match(page[i], ' (%l%d+%l%d+)[^ ]*$')
      local entry = found and holds.entry(found)
      local row = entry and redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1]
      if row and is_in_line(row[2]) then return found end
    end
  end
end
local function note_first(it, line, place)
  if it.first and it.first <= place then return end
  place = first_of(line, place)
  if place and not (it.first and it.first <= place) then it.first = place end
end
local deepest, following = tonumber(redis.call('HGET', stats, 'levels') or 0), nil
for _, it in ipairs(values) do
  for level = 0, deepest do
    local node = level .. it.path
    each_line('[' .. node, '(' .. node .. '\255', 100, function(line, place) note_first(it, line, place) end)
  end
end
if cursor ~= '' and most > 0 and t.depth > 0 then
  local oldest, by = {}, {} -- in order
  following = each_line(cursor == '-' and '-' or cursor, '+', 1000, function(line, place)
    local path = string.sub(line, 2, t.number > t.depth and select(2, agreed.split(line))[t.depth] or nil)
    local last, it = oldest[most], by[path]
    if last and last.first <= place then return end
    it = it or {path = path, first = false}
    note_first(it, line, place)
    if not it.first or last and last.first <= it.first then return end
    if not by[path] then oldest[#oldest + 1] = it end
    by[path] = it
    table.sort(oldest, function(a, b) return a.first < b.first end)
    if #oldest > most then by[table.remove(oldest).path] = nil end
  end)
  for _, it in ipairs(oldest) do
    if not known[it.path] then
      show(it.path, redis.call('ZSCORE', busy, it.path) or '0')
      known[it.path].first = it.first
    elseif not known[it.path].first or it.first < known[it.path].first then
      known[it.path].first = it.first
    end
  end
end
-- The jobs that wait at the places of a node.
local in_lines, there, left = 0, nil, 5000
local function waiting_at(node)
  local from, to = '[' .. node, '(' .. node .. '\255'
  local places = redis.call('ZLEXCOUNT', lines, from, to)
  if not there or places == 0 then return math.min(places, in_lines) end
  local page, found = redis.call('ZRANGEBYLEX', lines, from, to, 'LIMIT', 0, left), 0
  left = left - #page
  for i = 1, #page do
    if there[string.match(page[i], ' (%l%d+%l%d+)%+?=?[%d.e+-]*$')] then found = found + 1 end
  end
  return math.min(in_lines, found + places - #page)
end
local counted = redis.pcall('XPENDING', jobs, 'workers')
for _, row in ipairs(not counted.err and counted[4] or {}) do
  if row[1] == 'parked:new' or row[1] == 'parked:front' then in_lines = in_lines + tonumber(row[2]) end
end
if in_lines <= 2000 and redis.call('ZCARD', lines) > in_lines then
  there = {}
  for _, owner in ipairs({'parked:new', 'parked:front'}) do
    for _, row in ipairs(redis.call('XPENDING', jobs, 'workers', '-', '+', 2000, owner)) do there[holds.place(row[1])] = true end
  end
end
local rows, total, now = {}, 0, clock()
local _, scores = 0, redis.call('ZRANGE', busy, 0, -1, 'WITHSCORES')
for i = 2, #scores, 2 do total = total + tonumber(scores[i]) end
local ended_jobs = {} -- ended jobs are counted as leased until the next lease
for _, text in ipairs(redis.call('LRANGE', settled, 0, 999)) do
  local bytes, at = string.match(text, '^%S+ %S+ %d+ (%d+):()')
  if bytes then
    local _, ends_at = agreed.split(string.sub(text, at, at + bytes - 1))
    local node = string.sub(text, at, at - 1 + (ends_at[t.depth] or 1))
    ended_jobs[node] = (ended_jobs[node] or 0) + 1
  end
end
local limit = {}
for _, one in ipairs(t.depth == 1 and t.slots or {}) do limit = one.at == 1 and one or limit end
for _, it in ipairs(values) do
  local path, running, waiting, p50, p95 = it.path, 0, 0, 0, 0
  for level = 0, deepest do
    local node = level .. path
    local kept, leased, half, most_of = redis.call('HGET', shares, node), nil, nil, nil
    if kept then _, _, leased, _, _, half, most_of = struct.unpack(agreed.NODE, kept) end
    running = running + math.max(0, (leased or 0) - (ended_jobs[node] or 0))
    p50 = math.max(p50, half or 0)
    p95 = math.max(p50, p95, most_of or 0) -- each is an estimate of its own
    waiting = waiting + waiting_at(node)
  end
  local weight = redis.call('HGET', terms, 'w' .. path) or '1'
  local own = agreed.own(terms, limit, (limit.key or '') .. path) or 0
  local since = it.first and tonumber(string.match(holds.entry(it.first), '^%d+'))
  local halted, _, ends_at = 0, agreed.split('0' .. path)
  for at = 1, #ends_at do halted = math.max(halted, redis.call('HEXISTS', terms, 'p' .. string.sub(path, 1, ends_at[at] - 1))) end
  local age = since and string.format('%.0f', math.max(0, now - since)) or ''
  rows[#rows + 1] = {path, it.ms, weight, running, waiting, string.format('%.0f', p50), string.format('%.0f', p95), own, age, halted}
end
return {t.structure, string.format('%.3f', total), rows, following or '', paused}
