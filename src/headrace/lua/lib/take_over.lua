-- Move the jobs of a dead worker to the front, at most *limit*, and count its death. Jobs that must be read (for their
-- level, or for their id if there are listeners: *listening*) are moved within the budget. Forget the worker once it holds
-- no job. Answers the number of moved jobs, their entries, and their ids. q: as in finish; workers, registered.
local function take_over(q, name, limit, budget, listening)
  local jobs = q.jobs
  local entries = redis.call('XPENDING', jobs, 'workers', '-', '+', limit, name)
  for i = 1, #entries do entries[i] = entries[i][1] end
  local ids = finish(q, entries, {died = true, budget = budget, listening = listening})
  -- 6.2 keeps entries in the list that were removed by XDEL by hand; they would come back for ever.
  if #entries > 0 and redis.call('XPENDING', jobs, 'workers', '-', '+', 1, name)[1] then
    local left = redis.call('XPENDING', jobs, 'workers', entries[1], entries[#entries], #entries, name)
    for i = 1, #left do redis.call('XACK', jobs, 'workers', left[i][1]) end
  end
  if #redis.call('XPENDING', jobs, 'workers', '-', '+', 1, name) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', jobs, 'workers', name) -- only if it was found empty
    redis.call('ZREM', q.workers, name)
    redis.call('HDEL', q.registered, name)
  end
  return #entries, entries, ids
end
