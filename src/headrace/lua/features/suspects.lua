-- feature suspects: jobs whose holders died more than once run alone.
-- KEYS   deaths (hash)
-- HOOKS  finishes: suspects.acquit (deaths)
-- Suspects: jobs whose holder has died more than once. The death of a process says little about any one of its jobs. So
-- a call hands out a suspect alone, and a process runs one at a time: see suspects.py. `deaths` has the number of deaths
-- by entry, until the entry is gone or its job ends by itself. A lease that runs out counts as a death if its holder
-- is gone, as processes may die too soon to declare each other dead, or if it held other jobs. A death spends no
-- attempt. A job with AT_MOST deaths is a dead letter. Suspects that wait are with a consumer of their own: see levels.
-- They come after all other jobs, or once they have waited for a lease: so poison does not hold up others.
local suspects = {FROM = 2, AT_MOST = 20} -- in a table, as a script has 200 locals at most
-- The number of deaths of a suspect, or nil for any other entry. *most*: max_attempts; without an end there are none.
function suspects.deaths(deaths, entry, most)
  local number = tonumber(redis.call('HGET', deaths, entry) or 0)
  return most > 0 and number >= suspects.FROM and number or nil
end
-- The row of the suspect that is next: of the first hundred that wait, the one with the fewest deaths, so innocents come
-- before poison. *idle*: it is nil if none has waited for so many ms. *may*: tells whether it may be this one.
function suspects.next(q, idle, may)
  if not redis.call('XPENDING', q.jobs, 'workers', 'IDLE', idle, '-', '+', 1, SUSPECTS)[1] then return nil end
  local rows, entries = redis.call('XPENDING', q.jobs, 'workers', '-', '+', 100, SUSPECTS), {}
  for i = 1, #rows do entries[i] = rows[i][1] end
  local first, fewest = nil, math.huge
  for i, number in ipairs(redis.call('HMGET', q.deaths, unpack(entries))) do
    number = tonumber(number or 0)
    if number < fewest and (not may or may(entries[i])) then first, fewest = rows[i], number end
  end
  return first
end
-- Count a death for each of *entries* that *died*: true for all, or by entry. Answers which of *entries* are suspects.
function suspects.count_deaths(deaths, entries, died)
  local apart = {}
  if #entries == 0 or not died and redis.call('EXISTS', deaths) == 0 then return apart end
  local kept, changed = redis.call('HMGET', deaths, unpack(entries)), {}
  for i, entry in ipairs(entries) do
    local number = tonumber(kept[i] or 0)
    if died == true or died and died[entry] then
      number = number + 1
      changed[#changed + 1] = entry
      changed[#changed + 1] = number
    end
    apart[entry] = number >= suspects.FROM or nil
  end
  if #changed > 0 then redis.call('HSET', deaths, unpack(changed)) end
  return apart
end
-- Jobs that ended by themselves, while their process lives, are no suspects any more.
function suspects.acquit(q, entries, how)
  if how.itself then redis.call('HDEL', q.deaths, unpack(entries)) end
end
