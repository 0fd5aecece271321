-- enqueue: add jobs to the back, or to the delayed ones. A job whose id is taken is left as it is.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), delayed (zset), bodies (hash), stats (hash), events (channel), levels...
-- ARGV   call, form, items...
-- REPLY  ids and added, in turn: {id, 1 | 0, id, 1 | 0, ...} · form "plain", all added: {id, number} of consecutive ids,
--        or else {id, id, ...}
-- COST   1.5-2 us of server time per plain job of 100 bytes, 4-6 us with id, delay or priority
-- Items of form "plain" are payloads. Of form "full": id or '', delay, number of fields, then the fields
-- flat, `data` first. levels: the streams of the priority levels behind the first, for all forms but "plain". A delayed
-- job needs an id; one that is due before all others wakes a reader. Bounded by the client: at most 1,000 items, 1 MiB.
-- @include record
-- @include typed
-- @include clock
-- @include levels
-- @include unnamed
-- @include ring
-- @include due
-- @include add
-- @include tell
local lane, jobs, wake, ids, delayed, bodies, stats, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local known = recorded()
if known then return known end
local form, reply = ARGV[2], {}
local heard = ears(stats, events, 'added')
if form == 'plain' then
  -- pcall: an error of the first write (OOM, READONLY, WRONGTYPE) comes out with its own code on 6.2 too
  local first = redis.pcall('XADD', jobs, '*', 'data', ARGV[3])
  if type(first) == 'table' and first.err then return first end
  reply[1] = first
  for i = 4, #ARGV do reply[i - 2] = redis.call('XADD', jobs, '*', 'data', ARGV[i]) end
  redis.call('HINCRBY', stats, 'added', #reply)
  redis.call('HINCRBY', stats, 'enqueued', #reply)
  if heard.added then tell(events, 'added', reply) end
  -- As a rule they are consecutive: 20 bytes to record and to send instead of 20,000.
  local ms, number = string.match(first, '(%d+)-(%d+)')
  local last = ms .. '-' .. string.format('%.0f', number + #reply - 1)
  return answer(reply[#reply] == last and {first, #reply} or reply)
end
local length = redis.pcall('XLEN', jobs)
if type(length) == 'table' then return length end
local q = {
  jobs = jobs, wake = wake, ids = ids, delayed = delayed, bodies = bodies, stats = stats, levels = behind(stats, 9),
}
typed('HLEN', ids, bodies)
typed('ZCARD', delayed)
typed('XLEN', wake)
local now, at, first = clock(), 3, false
while at <= #ARGV do
  local fields, last = {}, at + 2 + ARGV[at + 2]
  for i = at + 3, last do fields[#fields + 1] = ARGV[i] end
  local id, added, soonest = add(q, now, ARGV[at], ARGV[at + 1], fields)
  reply[#reply + 1], reply[#reply + 2], first = id, added, first or soonest
  at = last + 1
end
if first then ring(wake) end
if heard.added then
  local ids_added = {}
  for i = 1, #reply, 2 do
    if reply[i + 1] == 1 then ids_added[#ids_added + 1] = reply[i] end
  end
  tell(events, 'added', ids_added)
end
return answer(reply)
