-- purge: remove what waits (waiting, parked, delayed), a page at a time. Leased, blocked and dead jobs stay.
-- KEYS   lane (string), jobs (stream), ids (hash), leases (zset), released (hash), delayed (zset), bodies (hash), stats (hash), limited (zset), events (channel), flows (zset), levels...
-- ARGV   call, limit
-- REPLY  how many were removed; 0 when nothing waits any more
-- COST   about 3 us per job
-- @include record
-- @include typed
-- @include fields
-- @include delivered
-- @include levels
-- @include tell
local lane, jobs, ids, leases, released = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local delayed, bodies, stats, limited, events, flows = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local limit = tonumber(ARGV[2])
local known = recorded()
if known then return known end
local levels = behind(stats, 12)
typed('XLEN', jobs)
typed('HLEN', ids, released, bodies, stats)
typed('ZCARD', leases, delayed, limited, flows)
local heard = ears(stats, events, 'deleted')
local gone, ids_gone = 0, {}
local function remove(entry, fields, level)
  local own = parse(fields)
  gone = gone + redis.call('XDEL', levels[level] or jobs, entry)
  if level then entry = entry .. '.' .. level else redis.pcall('XACK', jobs, 'workers', entry) end
  redis.call('HDEL', released, entry)
  redis.call('ZREM', limited, entry)
  ids_gone[#ids_gone + 1] = own.id or entry
  if own.id and redis.call('HGET', ids, own.id) == entry then
    redis.call('HDEL', ids, own.id)
    redis.call('ZADD', flows, 'XX', 3, own.id)
  end
end
local owners = {'bell', 'limited'}
for level = 0, levels.n do owners[#owners + 1] = front_of(level) end
for _, owner in ipairs(owners) do
  local rows = redis.pcall('XPENDING', jobs, 'workers', '-', '+', limit, owner)
  for i = 1, #rows do
    local body = redis.call('XRANGE', jobs, rows[i][1], rows[i][1])[1]
    if body then remove(body[1], body[2]) else redis.call('XACK', jobs, 'workers', rows[i][1]) end
  end
end
if gone < limit then
  local page = redis.call('XRANGE', jobs, '(' .. (delivered(jobs) or '0-0'), '+', 'COUNT', limit)
  for i = 1, #page do remove(page[i][1], page[i][2]) end
end
for level, stream in ipairs(levels) do
  local page = gone < limit and redis.call('XRANGE', stream, '-', '+', 'COUNT', limit) or {}
  for i = 1, #page do remove(page[i][1], page[i][2], level) end
end
if gone < limit then
  local late = redis.call('ZRANGE', delayed, 0, limit - 1)
  for i = 1, #late do
    gone = gone + redis.call('ZREM', delayed, late[i])
    redis.call('HDEL', bodies, late[i])
    redis.call('HDEL', released, late[i])
    redis.call('HDEL', ids, late[i])
    ids_gone[#ids_gone + 1] = late[i]
    redis.call('ZADD', flows, 'XX', 3, late[i])
  end
end
if gone > 0 then redis.call('HINCRBY', stats, 'deleted', gone) end
if heard.deleted then tell(events, 'deleted', ids_gone) end
return answer(gone)
