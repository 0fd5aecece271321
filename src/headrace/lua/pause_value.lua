-- pause_value: stop handing out jobs of one value of a queue with terms, or start again. Leased jobs are not touched.
-- KEYS   lane (string), wake (stream)
-- ARGV   call, pause flag, wanted...
-- REPLY  1 the state has changed · 0 the value was in this state already · 2 the queue has other terms · 3 there are 1,000
--        paused values
-- COST   10 us; then 5 us for each line of a lease call while a value is paused, and at most 100 lines of resumed values a call
-- wanted: names of headers, each with '=' and its part of the value, or '-' for jobs without the header: see of_value.
require_hashes(terms)
require_sorted_sets(lines)
require_streams(wake)
local names, path = '', ''
for i = wanted, #ARGV - 1, 2 do
  names = names .. holds.lp(ARGV[i])
  path = path .. holds.lp(ARGV[i + 1] ~= '-' and string.sub(ARGV[i + 1], 2) or nil)
end
local kept = redis.call('HMGET', terms, 'packed', 'paused', 'resumed', 'p' .. path)
if kept[1] and not agreed.headers(kept[1])[names] then return answer(2) end
if pause == (kept[4] ~= false) then return answer(0) end
local number = tonumber(kept[2] or 0)
if pause and number >= agreed.PAUSED then return answer(3) end
redis.call('HDEL', terms, 'p' .. path) -- a full server permits it, and then all later writes
local resumed = {}
for _, one in ipairs(kept[3] and cmsgpack.unpack(kept[3]) or {}) do
  if one[1] ~= path then resumed[#resumed + 1] = one end
end
if pause then
  redis.call('HSET', terms, 'p' .. path, names, 'paused', number + 1)
else
  if redis.call('EXISTS', lines) == 1 then resumed[#resumed + 1] = {path, '[0' .. path, 0} end
  if number > 1 then redis.call('HSET', terms, 'paused', number - 1) else redis.call('HDEL', terms, 'paused') end
  wake_one(wake)
end
if resumed[1] then redis.call('HSET', terms, 'resumed', cmsgpack.pack(resumed)) elseif kept[3] then redis.call('HDEL', terms, 'resumed') end
return answer(1)
