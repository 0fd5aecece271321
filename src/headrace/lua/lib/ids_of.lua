-- The ids of the jobs that *entries* carry, for those who listen.
local function named(jobs, entries)
  local ids = {}
  for i = 1, #entries do
    local body = redis.call('XRANGE', jobs, entries[i], entries[i])[1]
    ids[i] = body and parse(body[2]).id or entries[i]
  end
  return ids
end
