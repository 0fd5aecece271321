-- Suspects: jobs whose holder has died twice. The death of a process says little about any one of its jobs, so a
-- suspect is handed out alone, with no other job of its queue beside it, until it ends. `deaths` has '<beside others>
-- <alone>' for each entry whose holder has died: the number of deaths of each kind. It is kept until the entry is gone,
-- or was retried. Waiting suspects are with a consumer of their own: see levels. A worker that serves several queues,
-- or shards, has ' beside' at the end of its value in `registered`, unless it has a job that must run alone: see
-- company.lua.
local suspects = {FORGIVEN = 20} -- deaths beside others that spend no attempt, at most; in a table, as a script has 200 locals at most
function suspects.deaths(kept)
  local beside, alone = string.match(kept or '', '^(%d+) (%d+)$')
  return tonumber(beside or 0), tonumber(alone or 0)
end
function suspects.is_one(kept)
  local beside, alone = suspects.deaths(kept)
  return beside + alone >= 2
end
-- Count the deaths of holders. *died*: 'beside' or 'alone' by entry, nil for an entry whose holder lives. *by* -1: undo
-- it. Answers which of *entries* are suspects, and whether any is.
function suspects.count_deaths(deaths, entries, died, by)
  local suspect, any = {}, false
  local kept = redis.call('EXISTS', deaths) == 1 and #entries > 0 and redis.call('HMGET', deaths, unpack(entries)) or {}
  local changed = {}
  for i, entry in ipairs(entries) do
    local how = died and died[entry]
    if how or kept[i] then
      local beside, alone = suspects.deaths(kept[i])
      if how == 'beside' then beside = beside + (by or 1) elseif how == 'alone' then alone = alone + (by or 1) end
      if how then changed[#changed + 1], changed[#changed + 2] = entry, string.format('%d %d', beside, alone) end
      suspect[entry] = beside + alone >= 2
      any = any or suspect[entry]
    end
  end
  if #changed > 0 then redis.call('HSET', deaths, unpack(changed)) end
  return suspect, any
end
-- Whether a holder has more than one job, or had more before some were taken from it: then no job was alone.
function suspects.company(jobs, registered, name, held)
  if #(held or redis.call('XPENDING', jobs, 'workers', '-', '+', 2, name)) < 2 then
    return string.sub(redis.call('HGET', registered, name) or '', -7) == ' beside'
  end
  local known = redis.call('HGET', registered, name)
  if known and string.sub(known, -7) ~= ' beside' then redis.call('HSET', registered, name, known .. ' beside') end
  return true
end
