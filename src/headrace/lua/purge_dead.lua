-- purge_dead: remove dead letters for good, the oldest first or those of the ids given.
-- KEYS   lane (string), dead (stream), stats (hash), events (channel)
-- ARGV   call, cursor, limit, wanted...
-- REPLY  {removed, cursor}: cursor is '' when the end was reached
-- COST   about 2 us per letter looked at
-- @include record
-- @include fields
-- @include tell
local lane, dead, stats, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local cursor, limit = ARGV[2], tonumber(ARGV[3])
local known = recorded()
if known then return known end
local heard = ears(stats, events, 'deleted')
local wanted, gone, ids_gone = {}, 0, {}
for i = 4, #ARGV do wanted[ARGV[i]] = true end
local page = redis.call('XRANGE', dead, cursor, '+', 'COUNT', limit)
for i = 1, #page do
  local own = parse(page[i][2])
  if #ARGV == 3 or wanted[own.id] then
    gone = gone + redis.call('XDEL', dead, page[i][1])
    ids_gone[#ids_gone + 1] = own.id
  end
end
if gone > 0 then redis.call('HINCRBY', stats, 'dead_trimmed', gone) end
if heard.deleted then tell(events, 'deleted', ids_gone) end
return answer({gone, #page == limit and '(' .. page[#page][1] or ''})
