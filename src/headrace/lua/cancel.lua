-- cancel: remove a job by id, waiting, parked, leased or delayed. Its holder finds its lease lost.
-- KEYS   lane (string), jobs (stream), ids (hash), leases (zset), released (hash), delayed (zset), bodies (hash), stats (hash), control (channel), events (channel)
-- ARGV   call, id
-- REPLY  1 cancelled · 0 no such job
-- COST   10 us
-- @include record
-- @include typed
-- @include unnamed
-- @include tell
-- @include warn
local lane, jobs, ids, leases, released = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local delayed, bodies, stats, control, events = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local id = ARGV[2]
local known = recorded()
if known then return known end
typed('XLEN', jobs)
typed('HLEN', ids, released, bodies)
typed('ZCARD', leases, delayed)
local heard = ears(stats, events, 'cancelled')
local entry, gone = redis.call('HGET', ids, id), 0
if not entry and unnamed(jobs, id) then entry = id end
if entry == 'delayed' then
  gone = redis.call('ZREM', delayed, id)
  redis.call('HDEL', bodies, id)
  redis.call('HDEL', released, id)
elseif entry then
  gone = redis.call('XDEL', jobs, entry)
  local held = redis.pcall('XACK', jobs, 'workers', entry) -- no group yet: nothing to acknowledge
  if held == 1 then warn(control, entry) end
  redis.call('ZREM', leases, entry)
  redis.call('HDEL', released, entry)
end
redis.call('HDEL', ids, id)
if gone == 1 then redis.call('HINCRBY', stats, 'cancelled', 1) end
if heard.cancelled and gone == 1 then tell(events, 'cancelled', {id}) end
return answer(gone)
