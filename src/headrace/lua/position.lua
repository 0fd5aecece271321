-- position: how many jobs would be leased before one that waits.
-- KEYS   jobs (stream), ids (hash)
-- ARGV   id, limit
-- REPLY  the number, or `limit` when there are that many or more · -1 no such job waits
-- COST   10 us + 1 us per job in front of it, at most `limit`
-- @include unnamed
-- @include delivered
local jobs, ids = KEYS[1], KEYS[2]
local id, limit = ARGV[1], tonumber(ARGV[2])
local entry = redis.call('HGET', ids, id)
if not entry and unnamed(jobs, id) then entry = id end
if not entry or entry == 'delayed' or entry == 'blocked' or not redis.call('XRANGE', jobs, entry, entry)[1] then return -1 end
local row, held = redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1], {}
if row and row[2] ~= 'parked' and row[2] ~= 'bell' then return -1 end
for _, consumer in ipairs(redis.pcall('XPENDING', jobs, 'workers')[4] or {}) do held[consumer[1]] = tonumber(consumer[2]) end
local before, parked, bell = 0, held.parked or 0, held.bell or 0
if row then
  before = #redis.call('XPENDING', jobs, 'workers', '-', entry, limit + 1, row[2]) - 1 + (row[2] == 'bell' and parked or 0)
else
  local last = delivered(jobs)
  local from = last and '(' .. last or '-'
  before = parked + bell
  if before < limit then before = before + #redis.call('XRANGE', jobs, from, entry, 'COUNT', limit - before + 1) - 1 end
end
return math.min(before, limit)
