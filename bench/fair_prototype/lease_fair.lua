-- A prototype of the fair pick: one level of values, no limits, priorities or suspects. See docs/explanation/fairness.md.
-- KEYS   jobs, shares, lines, ready, held, settled
-- ARGV   worker, limit, look, header
-- REPLY  {entry, fields, ...}, and in the last place 1 if the look did not reach the end
local jobs, shares, lines, ready, held, settled = unpack(KEYS)
local worker, limit, look, header = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local format, match, sub = string.format, string.match, string.sub

local function place(entry)
  local ms, number = match(entry, '^(%d+)%-(%d+)$')
  return string.char(96 + #ms) .. ms .. string.char(96 + #number) .. number
end
local function entry_of(at)
  local ms = string.byte(at) - 96
  return sub(at, 2, ms + 1) .. '-' .. sub(at, ms + 3)
end
local function line(value) return #value .. ':' .. value .. ' ' end
local function in_parts(list, write)
  for i = 1, #list, 4000 do write(unpack(list, i, math.min(#list, i + 3999))) end
end
local function member(start, value) return format('0 %016d ', start) .. value end

-- 1. Nothing waits or is leased: all starts are forgotten.
if redis.call('EXISTS', lines, held) == 0 then redis.call('DEL', shares, ready, settled) end

-- 2. What is known of values: start (us), mean (us), number of leased jobs, active.
local known, asked = {}, {}
local function ask(value)
  local it = known[value]
  if not it then
    it = { -- all fields at once: a table that grows costs more than all else here
      value = value, start = 0, mean = 0, weight = 1, running = 0, was = false, active = false, listed = false, ran = false,
      more = 0, new = false, at = 1, row = false, chunk = false, chunk_at = 1, done = false, last = false, size = false,
      touched = false, key = false,
    }
    known[value] = it
    asked[#asked + 1] = it
  end
  return it
end

-- 3. The ends since the last call; the first look; the first children.
local ends = redis.call('LPOP', settled, 1000) or {}
local ended, since, charge, value, row
for i = 1, #ends do
  if string.byte(ends[i]) == 64 then
    ended = tonumber(sub(ends[i], 2))
  else
    if ends[i] ~= row then -- jobs of one value that were leased in one call have equal rows
      row = ends[i]
      since, charge, value = match(row, '^(%S+) (%S+) (.*)$')
      since, charge = tonumber(since), tonumber(charge)
    end
    local it = ask(value)
    it.ran = it.ran or {}
    local ran = 1000 * (ended - since)
    it.ran[#it.ran + 1] = ran
    it.more = it.more + ran - charge
  end
end
local rows = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', look, 'STREAMS', jobs, '>')
rows = rows and rows[1][2] or {}
for i = 1, #rows do
  local fields, value = rows[i][2], ''
  for j = 1, #fields, 2 do
    if fields[j] == header then value = fields[j + 1] end
  end
  local it = ask(value)
  if it.new then it.new[#it.new + 1] = rows[i] else it.new = {rows[i]} end
end
local first = redis.call('ZRANGEBYLEX', ready, '[0 ', '(0!', 'LIMIT', 0, limit + 1)
for i = 1, #first do ask(sub(first[i], 20)).listed = first[i] end

local names = {'v', 'm', 'c'}
for i = 1, #asked do names[2 * i + 2], names[2 * i + 3] = 'a' .. asked[i].value, 'w' .. asked[i].value end
local stored = {}
in_parts(names, function(...)
  local values = redis.call('HMGET', shares, ...)
  for i = 1, #values do stored[#stored + 1] = values[i] end
end)
local virtual, mean = tonumber(stored[1] or 0), tonumber(stored[2] or 1000)

-- 4. Corrections, and the values that come in.
local removed, added, heap = {}, {}, {}
local function before(a, b) return a.start < b.start or a.start == b.start and a.value < b.value end
local function push(it)
  local n = #heap + 1
  while n > 1 do
    local up = math.floor(n / 2)
    if before(heap[up], it) then break end
    heap[n] = heap[up]
    n = up
  end
  heap[n] = it
end
local function sink(it) -- in place of the first
  local n, size = 1, #heap
  while true do
    local child = 2 * n
    if child > size then break end
    if child < size and before(heap[child + 1], heap[child]) then child = child + 1 end
    if not before(heap[child], it) then break end
    heap[n] = heap[child]
    n = child
  end
  heap[n] = it
end
local function pop()
  local last = table.remove(heap)
  if #heap > 0 then sink(last) end
end
for i = 1, #asked do
  local it = asked[i]
  local start, its_mean, running, active = match(stored[2 * i + 2] or '', '^(%S+) (%S+) (%d+) (%d)$')
  it.weight = tonumber(stored[2 * i + 3] or 1)
  it.was, it.active, it.start = start and tonumber(start), active == '1', tonumber(start or virtual)
  it.running = tonumber(running or 0) - (it.ran and #it.ran or 0)
  it.mean = tonumber(its_mean) or mean
  for j = 1, it.ran and #it.ran or 0 do
    it.mean = it.mean + (it.ran[j] - it.mean) / 8
    mean = mean + (it.ran[j] - mean) / 8
  end
  it.start = math.max(0, it.start + it.more / it.weight)
  if not it.active and it.new then it.start = math.max(it.start, virtual) end
  if it.active or it.new then push(it) end
end

-- 5. The picks: from the line first, then from the new ones.
local picked, left, took, leased, hold = {}, {}, {}, {}, {}
local share = math.ceil(limit / math.max(1, #heap))
local function next_of(it)
  if it.active and not it.done then
    if not it.chunk or it.chunk_at > #it.chunk then
      it.size = math.min(it.size and 4 * it.size or share + 1, limit + 1)
      it.key = it.key or line(it.value)
      local key = it.key
      local from = it.last and '(' .. it.last or '[' .. key
      it.chunk, it.chunk_at = redis.call('ZRANGEBYLEX', lines, from, '(' .. key .. '\255', 'LIMIT', 0, it.size), 1
      it.done = #it.chunk < it.size
      it.last = it.chunk[#it.chunk]
    end
  end
  if it.chunk and it.chunk_at <= #it.chunk then return it.chunk[it.chunk_at], true end
  if it.new and it.at <= #it.new then return it.new[it.at], false end
end
local count, stamp = 0, format('%.3f ', now)
while count < limit and #heap > 0 do
  local it = heap[1]
  local job, stored_there = next_of(it)
  if not job then
    pop()
  else
    count = count + 1
    local charge = it.mean
    it.row = it.row or stamp .. format('%d ', charge) .. it.value
    if stored_there then
      it.chunk_at = it.chunk_at + 1
      local entry = entry_of(sub(job, #it.key + 1))
      took[#took + 1], leased[#leased + 1] = job, entry
      hold[#hold + 1], hold[#hold + 2] = entry, it.row
    else
      it.at = it.at + 1
      picked[#picked + 1] = job
      hold[#hold + 1], hold[#hold + 2] = job[1], it.row
    end
    virtual = it.start
    it.start, it.running, it.touched = it.start + charge / it.weight, it.running + 1, true
    sink(it)
  end
end

-- 6. The writes.
local reply = {}
if #leased > 0 then
  in_parts(took, function(...) redis.call('ZREM', lines, ...) end)
  leased[#leased + 1], leased[#leased + 2] = 'RETRYCOUNT', 1
  for _, job in ipairs(redis.call('XCLAIM', jobs, 'workers', worker, 0, unpack(leased))) do
    reply[#reply + 1], reply[#reply + 2] = job[1], job[2]
  end
end
for i = 1, #picked do reply[#reply + 1], reply[#reply + 2] = picked[i][1], picked[i][2] end
local filed, rest, gone, created = {}, {}, {}, 0
for i = 1, #asked do
  local it = asked[i]
  local more = it.new and it.at <= #it.new
  for j = more and it.at or 1, more and #it.new or 0 do
    rest[#rest + 1] = it.new[j][1]
    filed[#filed + 1], filed[#filed + 2] = 0, line(it.value) .. place(it.new[j][1])
  end
  local active = more or it.active and not (it.done and it.chunk_at > #it.chunk)
  if it.active and not more and active and it.chunk and it.chunk_at > #it.chunk then -- is there one more?
    active = redis.call('ZRANGEBYLEX', lines, '(' .. it.last, '(' .. line(it.value) .. '\255', 'LIMIT', 0, 1)[1] ~= nil
  end
  if it.touched or it.ran or it.new or it.active ~= active then
    if it.active then removed[#removed + 1] = it.listed or member(it.was, it.value) end
    if active or it.running > 0 or it.start > virtual then
      if active then added[#added + 1], added[#added + 2] = 0, member(it.start, it.value) end
      if not it.was then created = created + 1 end
      left[#left + 1], left[#left + 2] = 'a' .. it.value, format('%d %d %d %d', it.start, it.mean, it.running, active and 1 or 0)
    elseif it.was then
      gone[#gone + 1] = 'a' .. it.value
    end
  end
end
if #rest > 0 then
  for i = 1, #rest, 1000 do
    local some = {unpack(rest, i, math.min(#rest, i + 999))}
    some[#some + 1], some[#some + 2], some[#some + 3] = 'RETRYCOUNT', 0, 'JUSTID'
    redis.call('XCLAIM', jobs, 'workers', 'parked:new', 0, unpack(some))
  end
  in_parts(filed, function(...) redis.call('ZADD', lines, ...) end)
end
in_parts(removed, function(...) redis.call('ZREM', ready, ...) end)
in_parts(added, function(...) redis.call('ZADD', ready, ...) end)
in_parts(gone, function(...) redis.call('HDEL', shares, ...) end)
if #hold > 0 then in_parts(hold, function(...) redis.call('HSET', held, ...) end) end
left[#left + 1], left[#left + 2], left[#left + 3], left[#left + 4] = 'v', format('%.0f', virtual), 'm', format('%.0f', mean)
in_parts(left, function(...) redis.call('HSET', shares, ...) end)
-- Idle values that are in no debt any more. HSCAN answers all of a small hash, so it is called for 64 new values at once.
if created > 0 then
  local from, came = match(stored[3] or '0 0', '^(%d+) (%d+)$')
  came = came + created
  if came >= 64 then
    local page, paid = redis.call('HSCAN', shares, from, 'COUNT', 2 * came), {}
    for i = 1, #page[2], 2 do
      local start = match(page[2][i + 1], '^(%d+) %d+ 0 0$')
      if start and tonumber(start) <= virtual then paid[#paid + 1] = page[2][i] end
    end
    in_parts(paid, function(...) redis.call('HDEL', shares, ...) end)
    from, came = page[1], 0
  end
  redis.call('HSET', shares, 'c', from .. ' ' .. came)
end
reply[#reply + 1] = #rows == look and 1 or 0
return reply
