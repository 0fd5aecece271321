-- pause: stop handing out jobs, or start again. Leased jobs are not touched.
-- KEYS   lane (string), wake (stream), stats (hash)
-- ARGV   call, pause flag
-- REPLY  1 the state has changed · 0 the queue was in this state already
-- COST   10 us
-- pause: 1 pauses the queue; 0 resumes it, and wakes all readers that wait for this.
require_streams(wake)
local was = redis.call('HDEL', stats, 'paused') == 1 -- a full server permits it, and then all later writes
if pause then
  redis.call('HSET', stats, 'paused', 1)
elseif was then
  wake_many(wake, 8)
end
return answer(pause ~= was and 1 or 0)
