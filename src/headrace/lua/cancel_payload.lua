-- cancel_payload: remove the jobs of one payload, one page of the queue at a time.
-- KEYS   lane (string), jobs (stream), ids (hash), leases (zset), released (hash), delayed (zset), bodies (hash), stats (hash), control (channel), events (channel), flows (zset), levels...
-- ARGV   call, payload, place, cursor, limit
-- REPLY  {cancelled, place, cursor}: place 'jobs', 'level:<n>' or 'delayed', with the cursor to go on from; '' when done
-- COST   O(limit): about 1 us per job looked at
-- @include record
-- @include typed
-- @include fields
-- @include levels
-- @include tell
-- @include warn
local lane, jobs, ids, leases, released = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local delayed, bodies, stats, control, events, flows = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local payload, place, cursor, limit = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local known = recorded()
if known then return known end
local levels = behind(stats, 12)
typed('XLEN', jobs)
typed('HLEN', ids, released, bodies)
typed('ZCARD', leases, delayed, flows)
local heard = ears(stats, events, 'cancelled')
local gone, held, ids_gone = 0, {}, {}
local level = place == 'jobs' and 0 or tonumber(string.match(place, '^level:(%d)$'))
if level then
  local stream = levels[level] or jobs
  local page = redis.call('XRANGE', stream, cursor, '+', 'COUNT', limit)
  for i = 1, #page do
    local entry, own = page[i][1], parse(page[i][2])
    if own.data == payload then
      gone = gone + redis.call('XDEL', stream, entry)
      if level > 0 then
        entry = entry .. '.' .. level
      elseif redis.pcall('XACK', jobs, 'workers', entry) == 1 then
        held[#held + 1] = entry
      end
      ids_gone[#ids_gone + 1] = own.id or entry
      redis.call('ZREM', leases, entry)
      redis.call('HDEL', released, entry)
      if own.id and redis.call('HGET', ids, own.id) == entry then
        redis.call('HDEL', ids, own.id)
        redis.call('ZADD', flows, 'XX', 3, own.id)
      end
    end
  end
  if #page == limit then
    cursor = '(' .. page[#page][1]
  elseif level < levels.n then
    place, cursor = 'level:' .. level + 1, '-'
  else
    place, cursor = 'delayed', '0'
  end
else
  local page = redis.call('HSCAN', bodies, cursor, 'COUNT', limit)
  for i = 1, #page[2], 2 do
    local own = parse(cmsgpack.unpack(page[2][i + 1]))
    if own.data == payload then
      local id = page[2][i]
      ids_gone[#ids_gone + 1] = id
      gone = gone + redis.call('ZREM', delayed, id)
      redis.call('HDEL', bodies, id)
      redis.call('HDEL', released, id)
      redis.call('HDEL', ids, id)
      redis.call('ZADD', flows, 'XX', 3, id)
    end
  end
  cursor = page[1]
  if cursor == '0' then place = '' end
end
if gone > 0 then redis.call('HINCRBY', stats, 'cancelled', gone) end
warn(control, table.concat(held, ' '))
if heard.cancelled then tell(events, 'cancelled', ids_gone) end
return answer({gone, place, cursor})
