-- The number of a queue's levels after the first, as its jobs used or its workers declare them. *said*: the declared
-- options.
local function deepest_of(levels, said)
  local deepest = tonumber(levels or 0) or 0
  for i = 1, #said, 2 do
    if said[i] == 'priorities' then deepest = math.max(deepest, (tonumber(said[i + 1]) or 1) - 1) end
  end
  return deepest
end
local function deepest_level(stats)
  local kept = redis.call('HMGET', stats, 'levels', 'declared')
  return deepest_of(kept[1], strings_of(kept[2]) or {})
end
