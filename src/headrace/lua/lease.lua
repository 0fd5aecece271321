-- lease: hand out up to `limit` jobs, level by level: parked ones first, then those a reader was woken for, then new ones.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), workers (zset), registered (hash), leases (zset), released (hash), delayed (zset), bodies (hash), dead (stream), stats (hash), limited (zset), rates (zset), events (channel), flows (zset), levels...
-- ARGV   call, worker, limit, duration, lease, ttl, max_attempts, dead_limit, woken, heir_of, rates...
-- REPLY  {known, next_due, taken, fresh, healed, now}: known 0 = this worker was declared dead, nothing handed out ·
--        2 = nothing is handed out: the queue is paused, or a rate limit admits none for next_due ms ·
--        next_due ms until a delayed or limited job is due or -1 · taken {entry, fields, count, releases}... · fresh entries
--        and payloads in turn: first deliveries (count 1) of jobs that are their payload and nothing else, after
--        those of taken · healed 1 = the group was missing and was created · now ms of the server's clock
-- COST   6 us + 2-3 us per job, of a level behind the first 15 us
-- duration: ms of these leases, '' for the worker's own (`lease`). ttl: ms for which to register a worker that
-- has no heartbeat, 0 when it must be registered already. heir_of: '', or who was here before under our name and
-- holds jobs yet: they come before all others, and what is more than `limit` goes to the front. Rates: {header or ''
-- for the whole queue, ms a token takes, tokens at most}; a job that the limit of its header's value does not admit
-- goes to the consumer `limited` until it is due, and is handed out then, before all others. levels: the streams of the
-- priority levels behind the first; what is handed out of them goes to the jobs stream, under an id and with its `enq`.
-- @include record
-- @include typed
-- @include clock
-- @include fields
-- @include groups
-- @include hush
-- @include bury
-- @include levels
-- @include promote
-- @include rise
-- @include wake
-- @include park
-- @include bereave
-- @include rates
-- @include named
-- @include tell
local lane, jobs, wake_stream, ids, workers, registered = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local leases, released, delayed, bodies, dead, stats = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local limited, rates, events, flows = KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local worker, limit, duration, lease, ttl = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], tonumber(ARGV[6])
local max_attempts, dead_limit, woken, heir_of = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9] == '1', ARGV[10]
local q = {
  jobs = jobs, wake = wake_stream, ids = ids, released = released, delayed = delayed, bodies = bodies, stats = stats,
  levels = behind(stats, 17),
}
local now = clock()
local limits, keyed = {}, false
for i = 11, #ARGV, 3 do
  limits[#limits + 1] = {name = ARGV[i], step = tonumber(ARGV[i + 1]), burst = tonumber(ARGV[i + 2])}
  keyed = keyed or ARGV[i] ~= ''
end

local known = recorded()
if known then -- the reply was lost: what it handed out is still in our pending list
  local again = {}
  for _, entry in ipairs(known) do
    local row = redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1, worker)[1] -- none, if the group is gone
    local body = row and redis.call('XRANGE', jobs, entry, entry)[1]
    if body then again[#again + 1] = {entry, body[2], row[4], tonumber(redis.call('HGET', released, entry) or 0)} end
  end
  return {1, -1, again, {}, 0, now}
end
local heard = ears(stats, events, 'leased', 'dead', 'promoted', 'reclaimed')
local parked, healed = grouped(jobs, wake_stream, 'XPENDING', 'workers', '-', '+', limit, 'parked')
if parked.err then return parked end
-- The first write is one that a full server permits; after it every other is permitted too.
redis.call('XACK', wake_stream, 'workers', '0-0')
if healed == 1 then redis.call('DEL', leases) end -- they went with the group: no deadline may outlive them
local deadline = tonumber(redis.call('ZSCORE', workers, worker) or 0)
if ttl > 0 then
  if deadline < now then redis.call('HSET', registered, worker, string.format('%.0f', now) .. ' ' .. lease) end
  if deadline < now + ttl then redis.call('ZADD', workers, string.format('%.0f', now + ttl), worker) end
elseif deadline == 0 then
  return {0, -1, {}, {}, healed, now}
end

if woken then healed = math.max(healed, hush(wake_stream)) end
if redis.call('HEXISTS', stats, 'paused') == 1 then return {2, -1, {}, {}, healed, now} end
local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
if first[2] and tonumber(first[2]) <= now then
  local promoted = promote(q, now, 100)
  if heard.promoted then tell(events, 'promoted', promoted) end
  first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
end

local taken, entries, buried, hold = {}, {}, {}, 0
limit, hold = room(rates, limits, now, limit)
if limit == 0 then return {2, hold, {}, {}, healed, now} end
-- It waits for its turn: no delivery, so that no attempt is spent. *count*: deliveries so far.
local function put_off(entry, count, due)
  redis.call('XCLAIM', jobs, 'workers', 'limited', 0, entry, 'RETRYCOUNT', count, 'JUSTID')
  redis.call('ZADD', limited, math.ceil(due), entry)
end
local function admitted(rows, bell)
  if not keyed then return rows end
  local some = {}
  for i = 1, #rows do
    local body = redis.call('XRANGE', jobs, rows[i][1], rows[i][1])[1]
    local due = body and admit(rates, limits, now, body[2], false)
    if due then put_off(rows[i][1], bell and 0 or rows[i][4], due) else some[#some + 1] = rows[i] end
  end
  return some
end
local function claim(rows, bell)
  if #rows == 0 then return end
  local list, counts = {}, {}
  for i = 1, #rows do
    list[i] = rows[i][1]
    counts[rows[i][1]] = bell and 1 or rows[i][4] + 1
  end
  if bell then list[#list + 1] = 'RETRYCOUNT'; list[#list + 1] = 1 end
  local got = redis.call('XCLAIM', jobs, 'workers', worker, 0, unpack(list))
  local there = {}
  for i = 1, #got do
    if got[i] then
      local entry, fields = got[i][1], got[i][2]
      there[entry] = true
      local releases = tonumber(redis.call('HGET', released, entry) or 0)
      local own, headers = parse(fields)
      local attempt = tonumber(own.attempt or 0) + counts[entry] - releases
      if max_attempts > 0 and attempt > max_attempts then
        typed('HLEN', ids, released, stats)
        typed('ZCARD', leases, flows)
        typed('XLEN', dead)
        redis.call('XACK', jobs, 'workers', entry)
        redis.call('XDEL', jobs, entry)
        redis.call('ZREM', leases, entry)
        redis.call('HDEL', released, entry)
        if own.id and redis.call('HGET', ids, own.id) == entry then
          redis.call('HDEL', ids, own.id)
          redis.call('ZADD', flows, 'XX', 2, own.id)
        end
        own.attempt, own.id = string.format('%.0f', attempt - 1 + releases), own.id or entry
        own.enq = own.enq or string.match(entry, '^%d+')
        local reason = 'no attempts left: its workers died, or let its leases expire'
        bury(dead, stats, dead_limit, reason, worker, releases, compose(own, headers))
        buried[#buried + 1] = own.id
      else
        taken[#taken + 1] = {entry, fields, counts[entry], releases}
        entries[#entries + 1] = entry
      end
    end
  end
  -- Gone by somebody's XDEL: 7.0 and later have dropped them from the pending list, 6.2 has not.
  for i = 1, #rows do
    if not there[rows[i][1]] then redis.call('XACK', jobs, 'workers', rows[i][1]) end
  end
end
-- Others take the place of those that are gone or buried, or new jobs would overtake them; for a bounded while.
local function front(rows, owner)
  local asked, seen = limit - #taken, 0
  while #rows > 0 do
    claim(admitted(rows, owner == 'bell'), owner == 'bell')
    seen = seen + #rows
    if #rows < asked or #taken == limit or seen > limit + 100 then return end
    asked = limit - #taken
    rows = redis.call('XPENDING', jobs, 'workers', '-', '+', asked, owner)
  end
end
if heir_of and heir_of ~= '' then
  front(redis.call('XPENDING', jobs, 'workers', '-', '+', limit, heir_of), heir_of)
  if #entries > 0 then redis.call('ZREM', leases, unpack(entries)) end
  redis.call('ZADD', workers, 'XX', 0, heir_of) -- should it live, it is told so
  local moved, left = bereave(jobs, workers, registered, leases, stats, heir_of, 1000)
  if heard.reclaimed then tell(events, 'reclaimed', named(jobs, left), heir_of) end
  wake(wake_stream, moved)
  parked = #taken < limit and redis.call('XPENDING', jobs, 'workers', '-', '+', limit - #taken, 'parked') or {}
end
-- Those that wait for their turn first: they are older.
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', limited, '-inf', now, 'LIMIT', 0, limit - #taken)) do
  local row = redis.call('XPENDING', jobs, 'workers', entry, entry, 1, 'limited')[1]
  local body = row and redis.call('XRANGE', jobs, entry, entry)[1]
  local due = body and admit(rates, limits, now, body[2], true)
  if due then
    redis.call('ZADD', limited, math.ceil(due), entry)
  else
    redis.call('ZREM', limited, entry)
    if row then claim({row}) end
  end
end
while #parked > limit - #taken do parked[#parked] = nil end
front(parked, 'parked')
if #taken < limit then front(redis.call('XPENDING', jobs, 'workers', '-', '+', limit - #taken, 'bell'), 'bell') end
local fresh, seen, further = {}, 0, keyed
local function read_some()
  local read = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', limit - #taken, 'STREAMS', jobs, '>')
  return read and read[1][2] or {}
end
-- What is new, as far as the limits of its keys admit it.
local function read_admitted()
  further = true
  while further and #taken < limit and seen < limit + 500 do
    local rows = read_some()
    seen, further = seen + #rows, #rows > 0
    for i = 1, #rows do
      local entry, fields = rows[i][1], rows[i][2]
      local due = admit(rates, limits, now, fields, false)
      if due then
        put_off(entry, 0, due)
      else
        entries[#entries + 1] = entry
        taken[#taken + 1] = {entry, fields, 1, tonumber(redis.call('HGET', released, entry) or 0)}
      end
    end
  end
end
local function read_new()
  local rows = read_some()
  local carry = redis.call('EXISTS', released) == 1 -- some may carry releases from an earlier entry
  local plain, before = not carry, #entries
  for i = 1, #rows do
    local entry, fields = rows[i][1], rows[i][2]
    entries[before + i] = entry
    if plain then
      -- Flat: a table less per job, here and in every client.
      if #fields == 2 and fields[1] == 'data' then
        fresh[2 * i - 1], fresh[2 * i] = entry, fields[2]
      else
        plain, fresh = false, {}
      end
    end
  end
  for i = 1, plain and 0 or #rows do
    local entry = rows[i][1]
    taken[#taken + 1] = {entry, rows[i][2], 1, carry and tonumber(redis.call('HGET', released, entry) or 0) or 0}
  end
end
local read = keyed and read_admitted or read_new
if #taken < limit then read() end
for level = 1, #taken + #fresh / 2 < limit and q.levels.n or 0 do
  for i = 1, #fresh, 2 do taken[#taken + 1] = {fresh[i], {'data', fresh[i + 1]}, 1, 0} end -- they come before these
  fresh = {}
  if #taken < limit then front(redis.call('XPENDING', jobs, 'workers', '-', '+', limit - #taken, front_of(level)), front_of(level)) end
  while #taken < limit and seen < limit + 500 and rise(q, level, 0, limit - #taken, '+') > 0 do read() end
end
if keyed and #taken < limit and seen >= limit + 500 then further = true end

if duration ~= '' then
  for i = 1, #entries do redis.call('ZADD', leases, string.format('%.0f', now + tonumber(duration)), entries[i]) end
end
if heard.dead then tell(events, 'dead', buried, worker) end
if heard.leased then
  local ids_leased = {}
  for i = 1, #taken do ids_leased[i] = parse(taken[i][2]).id or taken[i][1] end
  for i = 1, #fresh, 2 do ids_leased[#ids_leased + 1] = fresh[i] end
  tell(events, 'leased', ids_leased, worker)
end
local next_due = -1
if first[2] then next_due = math.max(0, tonumber(first[2]) - now) end
first = redis.call('ZRANGE', limited, 0, 0, 'WITHSCORES')
if first[2] then
  local due = math.max(0, tonumber(first[2]) - now)
  next_due = next_due < 0 and due or math.min(next_due, due)
end
if further then next_due = 0 end -- behind those that were put off there may be others
spend(rates, limits, now, #entries)
if keyed then redis.call('ZREMRANGEBYSCORE', rates, '-inf', now) end
return answer({1, next_due, taken, fresh, healed, now}, entries) -- recorded without the payloads
