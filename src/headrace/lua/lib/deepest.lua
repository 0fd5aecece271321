-- The number of a queue's levels after the first, as its jobs used or its workers declare them.
-- @include strings_of
local function deepest_level(stats)
  local kept = redis.call('HMGET', stats, 'levels', 'declared')
  local deepest, said = tonumber(kept[1] or 0) or 0, strings_of(kept[2]) or {}
  for i = 1, #said, 2 do
    if said[i] == 'priorities' then deepest = math.max(deepest, (tonumber(said[i + 1]) or 1) - 1) end
  end
  return deepest
end
