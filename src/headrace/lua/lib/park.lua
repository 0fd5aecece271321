-- Move leased entries to the front of their level. JUSTID: parking is no delivery, and a count that went back would
-- repeat a token.
-- @feature limits
-- @include fields
-- @include held
-- @include levels
-- @include page
-- @include suspects
local function park_at(jobs, owner, entries)
  if #entries == 0 then return end
  entries[#entries + 1] = 'JUSTID'
  redis.call('XCLAIM', jobs, 'workers', owner, 0, unpack(entries))
  entries[#entries] = nil
end
-- Jobs are read for their level, and for their id if there are listeners (*heard*). If there is a *budget*, *entries*
-- loses the jobs beyond it. Suspects go to their own consumer; *died*: see
-- count_deaths. Answers the ids.
-- q: jobs, leases, stats, deaths, and as in holds.
local function park(q, entries, budget, heard, died)
  local jobs = q.jobs
  local deepest = #entries > 0 and tonumber(redis.call('HGET', q.stats, 'levels') or 0) or 0
  local level_at, ids = {}, {}
  if deepest > 0 or heard then
    for i = 1, #entries do
      local body = budget and entry_at(budget, jobs, entries[i])
      if body == false then
        for j = #entries, i, -1 do entries[j] = nil end
        break
      end
      if not budget then body = redis.call('XRANGE', jobs, entries[i], entries[i])[1] end
      level_at[i] = body and level_of(body[2], deepest)
      ids[i] = heard and body and parse(body[2]).id or entries[i]
    end
  end
  local apart = suspects.count_deaths(q.deaths, entries, died)
  if deepest > 0 or next(apart) then
    local fronts = {}
    for i = 1, #entries do
      local front = apart[entries[i]] and SUSPECTS or front_of(level_at[i] or 0)
      fronts[front] = fronts[front] or {}
      table.insert(fronts[front], entries[i])
    end
    for front, some in pairs(fronts) do park_at(jobs, front, some) end
  else
    park_at(jobs, front_of(0), entries)
  end
  if #entries > 0 then redis.call('ZREM', q.leases, unpack(entries)) end
  if q.held then holds.give_back(q, entries) end
  return ids
end
