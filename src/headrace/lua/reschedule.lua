-- reschedule: bring a delayed job forward, or push it back.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), released (hash), delayed (zset), bodies (hash), stats (hash), events (channel), levels...
-- ARGV   call, id, delay
-- REPLY  1 done · 0 no delayed job has that id
-- COST   10 us
-- delay: '+ms' from now, '@ms' at a moment; '', or one that has passed, sends the job to the back of the queue now.
-- @include record
-- @include typed
-- @include clock
-- @include fields
-- @include levels
-- @include due
-- @include promote
-- @include ring
-- @include tell
local lane, jobs, wake, ids, released = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local delayed, bodies, stats, events = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local id, delay = ARGV[2], ARGV[3]
local known = recorded()
if known then return known end
local q = {
  jobs = jobs, wake = wake, ids = ids, released = released, delayed = delayed, bodies = bodies, stats = stats,
  levels = behind(stats, 10),
}
typed('XLEN', jobs, wake)
typed('HLEN', ids, released, bodies)
local heard = ears(stats, events, 'promoted')
if redis.call('ZREM', delayed, id) == 0 then return answer(0) end
local due = due_at(delay, clock())
if due > 0 then
  redis.call('ZADD', delayed, string.format('%.0f', due), id)
  if redis.call('ZRANK', delayed, id) == 0 then ring(wake) end
else
  come(q, id)
  if heard.promoted then tell(events, 'promoted', {id}) end
end
return answer(1)
