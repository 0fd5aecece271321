-- Move the jobs of a dead worker to the front, at most *limit*, and count its death. Jobs that must be read (for their
-- level, or for their id if there are listeners: *heard*) are moved within the budget. Forget the worker once it holds
-- no job. Answers the number of moved jobs, their entries, and their ids. *counted*: the entries, by name, for which
-- its death was counted before. q: as in park; workers, registered.
-- @include park
-- @include suspects
local function take_over(q, name, limit, budget, heard, counted)
  local jobs = q.jobs
  local held = redis.call('XPENDING', jobs, 'workers', '-', '+', math.max(2, limit), name)
  local how = suspects.company(jobs, q.registered, name, held) and 'beside' or 'alone'
  local entries, died = {}, {}
  for i = 1, math.min(limit, #held) do entries[i], died[held[i][1]] = held[i][1], not (counted and counted[held[i][1]]) and how or nil end
  local ids = park(q, entries, budget, heard, died)
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
