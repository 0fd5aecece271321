-- take_schedule: take over a schedule from another shard, as `hand_schedule` returned it.
-- KEYS   wake (stream)
-- ARGV   name, due int, schedule, sets...
-- REPLY  1 taken over · 0 a schedule of that name exists
-- COST   6 us + 3 us per set
-- sets: the sets of declared schedules that contain it in the other shard. They contain it here, too, so that `recur`
-- ends it when no worker declares it.
require_sorted_sets(ticks)
require_hashes(recurring)
require_streams(wake)
if redis.call('HEXISTS', schedules, name) == 1 then return 0 end
redis.call('HSET', schedules, name, schedule)
redis.call('ZADD', ticks, string.format('%.0f', due), name)
for i = sets, #ARGV do
  local its = strings_of(redis.call('HGET', recurring, '=' .. ARGV[i])) or {}
  local known = false
  for j = 1, #its do known = known or its[j] == name end
  if not known then its[#its + 1] = name end
  redis.call('HSET', recurring, '=' .. ARGV[i], cmsgpack.pack(its))
end
if redis.call('ZRANK', ticks, name) == 0 then wake_one(wake) end
return 1
