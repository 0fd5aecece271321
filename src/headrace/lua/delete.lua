-- delete: remove the queue with everything in it, its schedules too. The streams' keys stay, so that entry IDs never repeat.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), leases (zset), released (hash), delayed (zset), bodies (hash), blocked (hash), schedules (hash), ticks (zset), dead (stream), stats (hash), limited (zset), rates (zset), control (channel), events (channel), flows (zset), levels...
-- ARGV   call
-- REPLY  how many jobs were removed, in whatever state
-- COST   O(jobs), about 0.1 us each: whole nodes are freed at a time; 1 us per job of a flow
-- @include record
-- @include levels
-- @include tell
-- @include warn
local lane, jobs, wake, ids, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local released, delayed, bodies, blocked, schedules, ticks = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local dead, stats, limited, rates, control, events, flows = KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local known = recorded()
if known then return known end
local levels = behind(stats, 19)
local heard = ears(stats, events, 'deleted')
redis.call('ZCARD', flows) -- of another type: an error, before anything is removed
local gone = redis.call('XLEN', jobs) + redis.call('ZCARD', delayed) + redis.call('HLEN', blocked) + redis.call('XLEN', dead)
for _, stream in ipairs(levels) do gone = gone + redis.call('XTRIM', stream, 'MAXLEN', 0) end
if redis.call('EXISTS', jobs) == 1 then
  redis.call('XTRIM', jobs, 'MAXLEN', 0)
  redis.pcall('XGROUP', 'DESTROY', jobs, 'workers') -- with the pending list: holders find their leases lost
  redis.call('XGROUP', 'CREATE', jobs, 'workers', '0')
  redis.call('DEL', wake)
  redis.call('XGROUP', 'CREATE', wake, 'workers', '0', 'MKSTREAM')
end
redis.call('DEL', ids, leases, released, delayed, bodies, blocked, schedules, ticks, dead, limited, rates)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', flows, 0, 0)) do redis.call('ZADD', flows, 3, id) end
redis.call('HDEL', stats, 'paused')
if gone > 0 then redis.call('HINCRBY', stats, 'deleted', gone) end
warn(control, '*')
if heard.deleted then tell(events, 'deleted') end
return answer(gone)
