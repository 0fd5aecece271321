-- find: where one job is, by id.
-- KEYS   jobs (stream), ids (hash), released (hash), delayed (zset), bodies (hash), blocked (hash), dead (stream), limited (zset), stats (hash), levels...
-- ARGV   id
-- REPLY  {now, row}, row as in list; row is {} when there is no such job
-- COST   10 us; up to 2 us per dead letter when the job is in no other state
-- @include clock
-- @include fields
-- @include nobody
-- @include levels
-- @include unnamed
local jobs, ids, released, delayed, bodies = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local blocked, dead, limited, stats = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local q = {jobs = jobs, levels = behind(stats, 10)}
local id = ARGV[1]
local now = clock()
local function releases(entry) return tonumber(redis.call('HGET', released, entry) or 0) end
local entry = redis.call('HGET', ids, id)
if entry == 'delayed' then
  local body = redis.call('HGET', bodies, id)
  if body then
    local due = tonumber(redis.call('ZSCORE', delayed, id))
    return {now, {id, cmsgpack.unpack(body), 'delayed', 0, releases(id), '', due}}
  end
end
if entry == 'blocked' then
  local body = redis.call('HGET', blocked, id)
  if body then return {now, {id, cmsgpack.unpack(body), 'blocked', 0, 0, '', 0}} end
end
if not entry and unnamed(q, id) then entry = id end
if entry == 'delayed' or entry == 'blocked' then entry = nil end
local stream, number, level = nil, nil, nil
if entry then stream, number, level = entry_of(q, entry) end
local body = stream and redis.call('XRANGE', stream, number, number)[1]
if body then
  local own = parse(body[2])
  if (own.id or entry) == id then
    if level then return {now, {entry, prioritised(body[2], level), 'waiting', 0, releases(entry), '', 0}} end
    local row = redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1]
    if not row then return {now, {entry, body[2], 'waiting', 0, releases(entry), '', 0}} end
    if row[2] == 'limited' then
      local due = tonumber(redis.call('ZSCORE', limited, entry) or now)
      return {now, {entry, body[2], 'delayed', row[4], releases(entry), '', due}}
    end
    local state = row[2] == 'bell' and 'waiting' or parks(row[2]) and 'parked' or 'leased'
    local count = row[2] == 'bell' and 0 or row[4] -- to wake a reader is no delivery
    return {now, {entry, body[2], state, count, releases(entry), row[2], row[3]}}
  end
end
local from = '+'
while true do -- the newest first: an id may have died more than once
  local page = redis.call('XREVRANGE', dead, from, '-', 'COUNT', 100)
  for i = 1, #page do
    if parse(page[i][2]).id == id then return {now, {page[i][1], page[i][2], 'dead', 0, 0, '', 0}} end
  end
  if #page < 100 then return {now, {}} end
  from = '(' .. page[#page][1]
end
