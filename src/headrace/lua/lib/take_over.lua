-- Move the jobs of a dead worker to the front, at most *limit*, and of those that have to be read (for their level, or
-- their id if there are listeners: *heard*) as many as fit. Forget the worker once it holds nothing. Answers how many,
-- which, and their ids.
-- @include park
local function take_over(jobs, workers, registered, leases, stats, name, limit, budget, heard)
  local held = redis.call('XPENDING', jobs, 'workers', '-', '+', limit, name)
  local entries = {}
  for i = 1, #held do entries[i] = held[i][1] end
  local ids = park(jobs, leases, stats, entries, budget, heard)
  -- 6.2 keeps entries in the list that were removed by XDEL by hand; they would come back for ever.
  if #entries > 0 and redis.call('XPENDING', jobs, 'workers', '-', '+', 1, name)[1] then
    local left = redis.call('XPENDING', jobs, 'workers', entries[1], entries[#entries], #entries, name)
    for i = 1, #left do redis.call('XACK', jobs, 'workers', left[i][1]) end
  end
  if #redis.call('XPENDING', jobs, 'workers', '-', '+', 1, name) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', jobs, 'workers', name) -- only ever when seen empty
    redis.call('ZREM', workers, name)
    redis.call('HDEL', registered, name)
  end
  return #entries, entries, ids
end
