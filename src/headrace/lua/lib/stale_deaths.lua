-- Forget the deaths of the holders of removed entries, for the next hundred entries: 'cursor' in `deaths` is where to
-- continue. Answers 1 if suspects wait: then the caller wakes a reader for them.
local function forget_deaths(q)
  if redis.call('EXISTS', q.deaths) == 0 then return 0 end
  local page = redis.call('HSCAN', q.deaths, redis.call('HGET', q.deaths, 'cursor') or '0', 'COUNT', 100)
  local gone = {'cursor'}
  for i = 1, #page[2], 2 do
    local entry = page[2][i]
    if entry ~= 'cursor' and not redis.call('XPENDING', q.jobs, 'workers', entry, entry, 1)[1] then gone[#gone + 1] = entry end
  end
  redis.call('HDEL', q.deaths, unpack(gone))
  if page[1] ~= '0' then redis.call('HSET', q.deaths, 'cursor', page[1]) end
  return #redis.call('XPENDING', q.jobs, 'workers', '-', '+', 1, SUSPECTS)
end
