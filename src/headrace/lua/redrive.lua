-- redrive: send dead letters back to the back of their queue, or level, oldest first.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), released (hash), dead (stream), stats (hash), events (channel), flows (zset), levels...
-- ARGV   call, cursor, limit, wanted...
-- REPLY  {redriven, cursor}: cursor is '' when the end was reached
-- COST   about 12 us per job
-- wanted: ids to redrive; none for all. A letter whose id is taken again stays where it is. Attempts start anew.
-- @include record
-- @include typed
-- @include fields
-- @include levels
-- @include tell
local lane, jobs, wake, ids, released = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local dead, stats, events, flows = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local cursor, limit = ARGV[2], tonumber(ARGV[3])
local known = recorded()
if known then return known end
local q = {jobs = jobs, wake = wake, stats = stats, levels = behind(stats, 10)}
typed('XLEN', jobs, wake)
typed('HLEN', ids, released, stats)
typed('ZCARD', flows)
local wanted = {}
for i = 4, #ARGV do wanted[ARGV[i]] = true end
local heard = ears(stats, events, 'redriven')
local moved, ids_moved = 0, {}
local page = redis.call('XRANGE', dead, cursor, '+', 'COUNT', limit)
for i = 1, #page do
  local letter, fields = page[i][1], {}
  for j = 7, #page[i][2] do fields[#fields + 1] = page[i][2][j] end
  local own, headers = parse(fields)
  local there = redis.call('HEXISTS', ids, own.id) == 1
  if (#ARGV == 3 or wanted[own.id]) and not there then
    local spent = own.attempt
    redis.call('XDEL', dead, letter)
    local entry = append(q, compose(own, headers))
    redis.call('HSET', ids, own.id, entry)
    for j = 1, #headers, 2 do
      if headers[j] == 'headrace-flow' then redis.call('ZADD', flows, 4, own.id) end
    end
    -- The token goes on growing while the attempts start anew: earlier deliveries count as released.
    if spent then redis.call('HSET', released, entry, spent) end
    moved = moved + 1
    ids_moved[moved] = own.id
  end
end
if heard.redriven then tell(events, 'redriven', ids_moved) end
return answer({moved, #page == limit and '(' .. page[#page][1] or ''})
