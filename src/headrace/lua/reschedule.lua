-- reschedule: bring a delayed job forward, or push it back.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), released (hash), delayed (zset), bodies (hash), stats (hash)
-- ARGV   call, id, delay
-- REPLY  1 done · 0 no delayed job has that id
-- COST   10 us
-- delay: '+ms' from now, '@ms' at a moment; '', or one that has passed, sends the job to the back of the queue now.
-- @include record
-- @include typed
-- @include clock
-- @include fields
-- @include promote
-- @include ring
local lane, jobs, wake, ids, released, delayed, bodies, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local id, delay = ARGV[2], ARGV[3]
local known = recorded()
if known then return known end
typed('XLEN', jobs, wake)
typed('HLEN', ids, released, bodies, stats)
if redis.call('ZREM', delayed, id) == 0 then return answer(0) end
local now, due = clock(), 0
if delay ~= '' then due = tonumber(string.sub(delay, 2)) + (string.sub(delay, 1, 1) == '+' and now or 0) end
if due > now then
  redis.call('ZADD', delayed, string.format('%.0f', due), id)
  if redis.call('ZRANK', delayed, id) == 0 then ring(wake) end
else
  come(jobs, ids, delayed, bodies, released, stats, id)
end
return answer(1)
