-- The facts about a queue as a whole, as `about` answers them.
local function about_queue(stats)
  local kept = redis.call('HMGET', stats, 'paused', 'levels', 'declaration', 'declared', 'terms', 'concurrency')
  local said = strings_of(kept[4]) or {}
  local reply = {clock(), kept[1] and 1 or 0, deepest_of(kept[2], said), tonumber(kept[3] or 0) or 0}
  for _, word in ipairs(said) do reply[#reply + 1] = word end
  for at, name in ipairs({'terms', 'concurrency'}) do
    if kept[at + 4] then reply[#reply + 1], reply[#reply + 2] = name, kept[at + 4] end
  end
  return reply
end
