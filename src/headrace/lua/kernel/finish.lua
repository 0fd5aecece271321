-- Ends the leases of jobs that stay in the queue, for each feature. Jobs that leave the queue, or get other entries, end theirs in depart.
-- Move leased entries to the front of their level, and suspects to their own consumer. Jobs are read for their level, and
-- for their id if there are listeners. Answers the ids.
local function to_front(q, entries, how)
  local jobs, budget, listening = q.jobs, how.budget, how.listening
  local deepest = #entries > 0 and tonumber(redis.call('HGET', q.stats, 'levels') or 0) or 0
  local level_at, ids = {}, {}
  if deepest > 0 or listening then
    for i = 1, #entries do
      local body = budget and entry_at(budget, jobs, entries[i])
      if body == false then
        for j = #entries, i, -1 do entries[j] = nil end
        break
      end
      if not budget then body = redis.call('XRANGE', jobs, entries[i], entries[i])[1] end
      level_at[i] = body and level_of(body[2], deepest)
      ids[i] = listening and body and parse(body[2]).id or entries[i]
    end
  end
  local apart = suspects.count_deaths(q.deaths, entries, how.died)
  if deepest > 0 or next(apart) then
    local fronts = {}
    for i = 1, #entries do
      local front = apart[entries[i]] and SUSPECTS or front_of(level_at[i] or 0)
      fronts[front] = fronts[front] or {}
      table.insert(fronts[front], entries[i])
    end
    for front, some in pairs(fronts) do hand_to(jobs, front, some) end
  else
    hand_to(jobs, front_of(0), entries)
  end
  return ids
end
-- End the leases of *entries*. *how*:
--   to        the consumer that has the jobs from now on; nil: the front
--   due       with 'limited': the ms when the jobs are handed out again
--   parked    true: XAUTOCLAIM has moved them to the front
--   hidden    true: of suspended runs, which workers of older versions are not to take
--   released  +1: the delivery spends no attempt; '=<n>': that many deliveries of the job have spent none
--   itself    true: the jobs ended by themselves, and their process lives, so they are no suspects any more
--   died      of the front: which jobs count a death, see count_deaths
--   budget    of the front: *entries* loses the jobs beyond it
--   listening     true: there are listeners, so ids are to be known
-- Answers the ids. q: jobs, stats, leases, deaths, and as in holds.
local function finish(q, entries, how)
  local ids = {}
  if not how.parked then
    if how.to then hand_to(q.jobs, how.to, entries) else ids = to_front(q, entries, how) end
  end
  if #entries == 0 then return ids end
  if how.hidden then -- they take no entry that has a deadline of its own
    for i = 1, #entries do redis.call('ZADD', q.leases, 'inf', entries[i]) end
  else
    redis.call('ZREM', q.leases, unpack(entries))
  end
  for i = 1, how.due and #entries or 0 do redis.call('ZADD', q.limited, string.format('%.0f', how.due), entries[i]) end
  local exactly = how.released and string.match(how.released, '^=(.*)$')
  for i = 1, how.released and #entries or 0 do
    if exactly then
      redis.call('HSET', q.released, entries[i], exactly)
    else
      redis.call('HINCRBY', q.released, entries[i], 1)
    end
  end
  -- @hooks finishes(q, entries, how)
  for i = 1, how.to and how.listening and #entries or 0 do
    local body = redis.call('XRANGE', q.jobs, entries[i], entries[i])[1]
    ids[i] = body and parse(body[2]).id or entries[i]
  end
  return ids
end
