-- shares: show the values of a queue with terms that had the most run time, halved each minute.
-- KEYS   stats (hash), jobs (stream)
-- ARGV   most int
-- REPLY  {structure, ms, rows}: ms of run time of all shown values · each row: {path, ms, weight, running, waiting, p50,
--        p95, own}: path as in a node without its level; running and waiting jobs; ms that jobs waited from when they might
--        run to their lease, the median and the 95th percentile, about, as texts ·
--        own: the limit of this value alone, if a limit has the header of `fair`; 0 for none
-- COST   20 us + 10 us per value and level, at most 10
-- If fewer values had run time of late, others follow that have jobs, in no order. A job that was cancelled leaves its place
-- in a line for a while: then 5,000 places are compared with the jobs in lines, if these are
-- 2,000 at most, for 5 ms; with more jobs the number is too high until upkeep has tidied.
-- @feature fair
-- @feature limits
-- @include agreed
-- @include held
local t = agreed.read(terms)
if not t then return {'', '0', {}} end
local heaviest = redis.call('ZREVRANGE', busy, 0, math.max(0, math.min(most, 10) - 1), 'WITHSCORES')
if #heaviest < 2 * math.min(most, 10) then -- values whose jobs run, and none has ended
  local known, found = {}, redis.call('HSCAN', shares, 0, 'MATCH', '[0-9]*', 'COUNT', 200)[2]
  for i = 1, #heaviest, 2 do known[heaviest[i]] = true end
  for i = 1, #found, 2 do
    local path, _, ends = string.sub(found[i], 2), agreed.split(found[i])
    if #ends == t.depth and not known[path] and #heaviest < 2 * math.min(most, 10) then
      known[path] = true
      heaviest[#heaviest + 1], heaviest[#heaviest + 2] = path, '0'
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
local levels, rows, total = tonumber(redis.call('HGET', stats, 'levels') or 0), {}, 0
local _, scores = 0, redis.call('ZRANGE', busy, 0, -1, 'WITHSCORES')
for i = 2, #scores, 2 do total = total + tonumber(scores[i]) end
local ended = {} -- ended jobs are counted as leased until the next lease
for _, text in ipairs(redis.call('LRANGE', settled, 0, 999)) do
  local bytes, at = string.match(text, '^%S+ %S+ %d+ (%d+):()')
  if bytes then
    local _, ends = agreed.split(string.sub(text, at, at + bytes - 1))
    local node = string.sub(text, at, at - 1 + (ends[t.depth] or 1))
    ended[node] = (ended[node] or 0) + 1
  end
end
local limit = {}
for _, one in ipairs(t.depth == 1 and t.slots or {}) do limit = one.at == 1 and one or limit end
for i = 1, #heaviest, 2 do
  local path, running, waiting, p50, p95 = heaviest[i], 0, 0, 0, 0
  for level = 0, levels do
    local node = level .. path
    local kept, leased, half, most_of = redis.call('HGET', shares, node), nil, nil, nil
    if kept then _, _, leased, _, _, half, most_of = struct.unpack(agreed.NODE, kept) end
    running = running + math.max(0, (leased or 0) - (ended[node] or 0))
    p50 = math.max(p50, half or 0)
    p95 = math.max(p50, p95, most_of or 0) -- each is an estimate of its own
    waiting = waiting + waiting_at(node)
  end
  local weight = redis.call('HGET', terms, 'w' .. path) or '1'
  local own = agreed.own(terms, limit, (limit.key or '') .. path) or 0
  rows[#rows + 1] = {path, heaviest[i + 1], weight, running, waiting, string.format('%.0f', p50), string.format('%.0f', p95), own}
end
return {t.structure, string.format('%.3f', total), rows}
