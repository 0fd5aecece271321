-- unschedule: end a schedule. Jobs that it has enqueued stay.
-- KEYS   lane (string)
-- ARGV   call, name
-- REPLY  1 ended · 0 no schedule has that name
-- COST   5 us
require_hashes(schedules)
redis.call('ZREM', ticks, name)
return answer(redis.call('HDEL', schedules, name))
