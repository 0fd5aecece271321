-- move: jobs that wait (parked, waiting, delayed) go to the back of another queue of the group, in their order.
-- KEYS   lane (string), jobs (stream), ids (hash), released (hash), delayed (zset), bodies (hash), stats (hash), events (channel), target...
-- ARGV   call, cursor, limit, wanted...
-- REPLY  {moved, cursor}: cursor '' when that was all, '-' from the start
-- COST   about 15 us per job
-- target: wake (stream), then the same seven keys of the other queue, then the streams of the levels behind the first of
-- this one, and as many of the other, where a job goes to its own level, as far as there is one. wanted: ids of the jobs, at most 1,000; none for all. A job keeps its
-- id, headers, attempts and times, a delayed one its moment; one whose id is taken there stays where it is, and so does
-- one of a flow, with the header `headrace-flow`. Here it counts as deleted, there as enqueued.
-- @include record
-- @include typed
-- @include fields
-- @include levels
-- @include unnamed
-- @include delivered
-- @include nobody
-- @include waiting
-- @include tell
local lane, jobs, ids, released, delayed, bodies, stats, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local to_wake, to_jobs, to_ids, to_released, to_delayed = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local to_bodies, to_stats, to_events = KEYS[14], KEYS[15], KEYS[16]
local cursor, limit = ARGV[2], tonumber(ARGV[3])
local known = recorded()
if known then return known end
local half = (#KEYS - 16) / 2
local q = {jobs = jobs, levels = behind(stats, 17, 16 + half)}
local other = {wake = to_wake, jobs = to_jobs, stats = to_stats, levels = {unpack(KEYS, 17 + half)}}
other.levels.n = math.min(half, tonumber(redis.call('HGET', to_stats, 'levels') or 0))
typed('XLEN', jobs, to_jobs, to_wake, unpack(other.levels))
typed('HLEN', ids, released, bodies, stats, to_ids, to_released, to_bodies, to_stats)
typed('ZCARD', delayed, to_delayed)
local heard, heard_there = ears(stats, events, 'deleted'), ears(to_stats, to_events, 'added')
local added, late, ids_moved = 0, 0, {}
local function taken(id) return redis.call('HEXISTS', to_ids, id) == 1 or unnamed(other, id) end
local function flows(headers)
  for i = 1, #headers, 2 do
    if headers[i] == 'headrace-flow' then return true end
  end
end
local function put(entry, fields, deliveries, level)
  local own, headers = parse(level and prioritised(fields, level) or fields)
  local stream, number = q.levels[level] or jobs, entry
  if level then entry = entry .. '.' .. level end
  local id, spent = own.id or entry, tonumber(own.attempt or 0) + deliveries
  if taken(id) or flows(headers) then return end
  local releases = redis.call('HGET', released, entry)
  redis.call('XDEL', stream, number)
  if not level then redis.pcall('XACK', jobs, 'workers', entry) end
  redis.call('HDEL', released, entry)
  if redis.call('HGET', ids, id) == entry then redis.call('HDEL', ids, id) end
  own.id, own.attempt = id, spent > 0 and string.format('%.0f', spent) or nil
  own.enq = own.enq or string.match(entry, '^%d+')
  local moved = append(other, compose(own, headers))
  redis.call('HSET', to_ids, id, moved)
  if releases then redis.call('HSET', to_released, moved, releases) end
  added, ids_moved[#ids_moved + 1] = added + 1, id
end
local function put_late(id)
  local body, due = redis.call('HGET', bodies, id), redis.call('ZSCORE', delayed, id)
  if not body or not due or taken(id) then return end
  local own, headers = parse(cmsgpack.unpack(body))
  if flows(headers) then return end
  local releases = redis.call('HGET', released, id)
  redis.call('ZREM', delayed, id)
  redis.call('HDEL', bodies, id)
  redis.call('HDEL', released, id)
  redis.call('HDEL', ids, id)
  redis.call('HSET', to_bodies, id, body)
  redis.call('ZADD', to_delayed, due, id)
  if own.id == id then redis.call('HSET', to_ids, id, 'delayed') end
  if releases then redis.call('HSET', to_released, id, releases) end
  late, ids_moved[#ids_moved + 1] = late + 1, id
end
local function put_pending(row)
  local body = redis.call('XRANGE', jobs, row[1], row[1])[1]
  if body then put(row[1], body[2], row[2] == 'bell' and 0 or row[4]) end -- what only rang was not delivered
end

local place, from = string.match(cursor, '^(%S+) (.*)$')
if #ARGV > 3 then
  for i = 4, #ARGV do
    local id = ARGV[i]
    local entry = redis.call('HGET', ids, id) or unnamed(q, id) and id
    if entry == 'delayed' then
      put_late(id)
    elseif entry and string.match(entry, '%.%d$') then
      local stream, number, level = entry_of(q, entry)
      local body = stream and redis.call('XRANGE', stream, number, number)[1]
      if body then put(number, body[2], 0, level) end
    elseif entry and entry ~= 'blocked' then
      local row = redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1] -- none where there is no group
      local body = not row and redis.call('XRANGE', jobs, entry, entry)[1]
      if body then put(entry, body[2], 0) end
      if row and (parks(row[2]) or row[2] == 'bell') then put_pending(row) end
    end
  end
  cursor = ''
elseif place ~= 'delayed' then
  local page, part, level, following = waiting_page(q, cursor, limit)
  -- Of what is new some may have been handed out since the page before.
  local fresh, leased = part == 'new' and level == 0 and #page > 0, {}
  local rows = fresh and redis.pcall('XPENDING', jobs, 'workers', page[1][1], page[#page][1], limit) or {}
  for i = 1, #rows do leased[rows[i][1]] = true end
  for i = 1, #page do
    if part ~= 'new' then
      put_pending(page[i])
    elseif not leased[page[i][1]] then
      put(page[i][1], page[i][2], 0, level > 0 and level or nil)
    end
  end
  cursor = following == '' and 'delayed 0' or following
else
  local stay = tonumber(from) -- those that were looked at before, and are there still
  local page = redis.call('ZRANGE', delayed, stay, stay + limit - 1)
  for i = 1, #page do put_late(page[i]) end
  cursor = #page == limit and 'delayed ' .. string.format('%.0f', stay + #page - late) or ''
end
if added + late > 0 then
  redis.call('HINCRBY', stats, 'deleted', added + late)
  redis.call('HINCRBY', to_stats, 'enqueued', added + late)
end
if heard.deleted then tell(events, 'deleted', ids_moved) end
if heard_there.added then tell(to_events, 'added', ids_moved) end
return answer({added + late, cursor})
