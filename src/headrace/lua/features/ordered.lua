-- feature ordered: the jobs of a key are handed out one at a time.
-- KEYS   turns (hash), behind (zset)
-- HOOKS  forgets: forget_turns (turns)
-- The order of the jobs of a key that are handed out one at a time, in the order of their entries. `turns` has
-- 'k<key>': the entry that has the turn until it leaves the queue; 'e<entry>': the key of that entry, and of each
-- entry that was read behind it; and 'a<entry>': see tried. The waiting entries are with the consumer `behind`, and in the sorted set `behind`, by
-- key and entry.
local function of_key(key) return #key .. ':' .. key end
-- All have the same score, so the order is by bytes.
local function place_behind(key, entry) return of_key(key) .. holds.place(entry) end
-- The next job of each of these keys gets the turn, and goes to the front.
local function pass_turns(q, keys)
  local set, free, passed, front = {}, {}, {}, {}
  local others = #keys > 0 and redis.call('EXISTS', q.behind) == 1
  for _, key in ipairs(keys) do
    local row = others and redis.call('ZRANGEBYLEX', q.behind, '[' .. of_key(key), '(' .. of_key(key) .. '\255', 'LIMIT', 0, 1)[1]
    if row then
      local entry = holds.entry(string.sub(row, #of_key(key) + 1))
      set[#set + 1], set[#set + 2], passed[#passed + 1], front[#front + 1] = 'k' .. key, entry, row, entry
    else
      free[#free + 1] = 'k' .. key
    end
  end
  in_parts(free, function(...) redis.call('HDEL', q.turns, ...) end)
  if #front == 0 then return end
  in_parts(set, function(...) redis.call('HSET', q.turns, ...) end)
  in_parts(passed, function(...) redis.call('ZREM', q.behind, ...) end)
  for i = 1, #front, 1000 do
    local some = {unpack(front, i, math.min(#front, i + 999))}
    some[#some + 1] = 'JUSTID'
    redis.pcall('XCLAIM', q.jobs, 'workers', 'parked', 0, unpack(some)) -- the group may be gone
  end
  for _ = 1, q.wake and math.min(#front, 8 - redis.call('XLEN', q.wake)) or 0 do redis.call('XADD', q.wake, '*', 'w', '1') end
end
-- Entries leave the queue: an entry that has the turn passes it on. *stays*: the entry gives up its turn, and no more.
local function forget_turns(q, names, stays)
  if q.turned == nil then q.turned = redis.call('EXISTS', q.turns) == 1 end
  if not q.turned or #names == 0 then return end
  local fields, of, gone, heads = {}, {}, {}, {}
  for i = 1, #names do fields[i] = 'e' .. names[i] end
  local keys = redis.call('HMGET', q.turns, unpack(fields))
  for i = 1, #names do
    if not stays then gone[#gone + 1] = 'a' .. names[i] end
    if keys[i] then
      gone[#gone + 1], of[#of + 1], heads[#heads + 1] = fields[i], i, 'k' .. keys[i]
    end
  end
  if #gone > 0 then redis.call('HDEL', q.turns, unpack(gone)) end
  if #heads == 0 then return end
  heads = redis.call('HMGET', q.turns, unpack(heads))
  local over, left = {}, {}
  for n, i in ipairs(of) do
    if heads[n] == names[i] then over[#over + 1] = keys[i] else left[#left + 1] = place_behind(keys[i], names[i]) end
  end
  in_parts(left, function(...) redis.call('ZREM', q.behind, ...) end)
  pass_turns(q, over)
end
