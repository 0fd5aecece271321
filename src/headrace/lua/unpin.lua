-- unpin: let runs that were held back for these builds go on now.
-- KEYS   (none)
-- ARGV   limit count, wanted...
-- REPLY  the number of them
-- COST   5 us + 1 us for each run that is held back, at most 100 of them
-- The caller may continue them, and leases next. It wakes no other reader.
require_hashes(pinned)
require_sorted_sets(asleep)
local mine, number, now = {}, 0, string.format('%.0f', clock())
for i = wanted, #ARGV do mine[ARGV[i]] = true end
local some = builds.pinned(pinned, asleep)
for i = 1, #some, 2 do
  if mine[some[i + 1]] and number < limit then
    redis.call('ZADD', asleep, now, some[i])
    redis.call('HDEL', pinned, some[i])
    number = number + 1
  end
end
return number
