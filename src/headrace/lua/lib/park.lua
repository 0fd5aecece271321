-- Move leased entries to the front of their level. JUSTID: parking is no delivery, and a count that went back would
-- repeat a token.
-- @include fields
-- @include levels
-- @include page
local function park_at(jobs, owner, entries)
  if #entries == 0 then return end
  entries[#entries + 1] = 'JUSTID'
  redis.call('XCLAIM', jobs, 'workers', owner, 0, unpack(entries))
  entries[#entries] = nil
end
-- Jobs are read for their level, and for their id if there are listeners, *heard*: those that fit the *budget*, if
-- there is one; *entries* lose the others. Answers the ids.
local function park(jobs, leases, stats, entries, budget, heard)
  local deepest = #entries > 0 and tonumber(redis.call('HGET', stats, 'levels') or 0) or 0
  local levels, ids = {[0] = entries}, {}
  if deepest > 0 or heard then
    for level = 0, deepest do levels[level] = {} end
    for i = 1, #entries do
      local body = budget and entry_at(budget, jobs, entries[i])
      if body == false then
        for j = #entries, i, -1 do entries[j] = nil end
        break
      end
      if not budget then body = redis.call('XRANGE', jobs, entries[i], entries[i])[1] end
      local some = levels[body and level_of(body[2], deepest) or 0]
      some[#some + 1] = entries[i]
      ids[i] = heard and body and parse(body[2]).id or entries[i]
    end
  end
  for level = 0, deepest do park_at(jobs, front_of(level), levels[level]) end
  if #entries > 0 then redis.call('ZREM', leases, unpack(entries)) end
  return ids
end
