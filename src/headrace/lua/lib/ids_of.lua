-- The ids of the jobs that *entries* carry, for those who listen. With a *budget*, of those that fit; *entries* lose the others.
-- @include fields
-- @include page
local function ids_of(jobs, entries, budget)
  local ids = {}
  for i = 1, #entries do
    local body = budget and entry_at(budget, jobs, entries[i])
    if body == false then
      for j = #entries, i, -1 do entries[j] = nil end
      break
    end
    if not budget then body = redis.call('XRANGE', jobs, entries[i], entries[i])[1] end
    ids[i] = body and parse(body[2]).id or entries[i]
  end
  return ids
end
