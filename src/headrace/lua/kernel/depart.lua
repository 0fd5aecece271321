-- Jobs leave their queue, or their places in it: their entries, all data under the entries' names, and their ids. Jobs
-- that keep their entries end their leases in finish.
-- Remove entries, and the data under their names: deadlines, releases, due times of rate limits, turns of keys, slots.
-- Answers as depart does.
local function remove_entries(q, names)
  local number, leased, gone = 0, false, {}
  if #names == 1 then
    local stream, entry = q.jobs, names[1]
    if q.levels then stream, entry = entry_of(q, entry) end
    number = stream and redis.call('XDEL', stream, entry) or 0
    leased = stream == q.jobs and redis.pcall('XACK', q.jobs, 'workers', entry) == 1
    gone[1] = number
  elseif redis.call('XACK', q.jobs, 'workers', unpack(names)) == #names then
    -- All were pending, so they exist: fewer are removed only if XDEL was used by hand.
    number = redis.call('XDEL', q.jobs, unpack(names))
    for i = 1, #names do gone[i] = 1 end
  else
    for i = 1, #names do
      gone[i] = redis.call('XDEL', q.jobs, names[i])
      number = number + gone[i]
    end
  end
  if q.unnoted then return number, leased, gone end
  redis.call('ZREM', q.leases, unpack(names))
  redis.call('ZREM', q.limited, unpack(names))
  redis.call('HDEL', q.released, unpack(names))
  -- @hooks forgets(q, names)
  return number, leased, gone
end
-- Free the *ids* of jobs whose entries are *gone*. Another job may own an id: a foreign producer added a second job with
-- it. Answers under which names these jobs were known: their ids, or of a job without one its entry.
local function free_ids(q, names, ids, gone)
  local asked, of, nameless, all = ids, names, {}, true
  for i = 1, #names do all = all and gone[i] == 1 and ids[i] and ids[i] ~= '' end
  if not all then
    asked, of = {}, {}
    for i = 1, #names do
      local own = ids[i] and ids[i] ~= ''
      if gone[i] == 1 and own then asked[#asked + 1], of[#of + 1] = ids[i], names[i] end
      if gone[i] == 1 and not own then nameless[#nameless + 1] = names[i] end
    end
  end
  local owners, free = #asked > 0 and redis.call('HMGET', q.ids, unpack(asked)) or {}, {}
  for i = 1, #asked do
    if owners[i] == of[i] then free[#free + 1] = asked[i] end
  end
  if #free > 0 then redis.call('HDEL', q.ids, unpack(free)) end
  for i = 1, #nameless do free[#free + 1] = nameless[i] end
  return free
end
-- Report to the features that jobs, *known* by these names, have left: see the fields what and told of depart.
local function tell_of(q, known, what, told)
  -- @hooks departs(q, known, what, told)
  if what == REMOVED then
    -- @hooks removes(q, known)
  end
end
-- Let jobs leave. *entries*: their names; several are all in the jobs stream. *how*:
--   ids     the ids of the jobs beside *entries*, '' or nil of a job without; if there is no list, the ids stay, as the
--           jobs get other entries
--   what    COMPLETED, DIED or REMOVED: their flows, and the runs that started them, learn this; the run of a job that is
--           REMOVED loses its records
--   told    by id, the result of a job that is COMPLETED, or why it DIED
-- Answers the number of jobs that were there; of a single entry whether it was leased or parked; and for each entry 1, or
-- 0 if it had gone before. q: asleep, unless all are leased; levels, unless all are in the jobs stream; wake, if the next
-- job of a key is to wake a reader; traces, to keep the runs of removed jobs for the history; unnoted, if nothing is kept
-- under the name of any entry.
local function depart(q, entries, how)
  local number, leased, gone = remove_entries(q, entries)
  local known = how.ids and free_ids(q, entries, how.ids, gone)
  if how.what then tell_of(q, known, how.what, how.told) end
  return number, leased, gone
end
-- The same for delayed jobs, which have no entries, by their ids.
local function depart_delayed(q, ids, what)
  local number = redis.call('ZREM', q.delayed, unpack(ids))
  redis.call('HDEL', q.bodies, unpack(ids))
  redis.call('HDEL', q.released, unpack(ids))
  redis.call('HDEL', q.ids, unpack(ids))
  if what then tell_of(q, ids, what) end
  return number
end
