-- lease: hand out up to `limit` jobs: parked ones first, then those a reader was woken for, then new ones.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), workers (zset), registered (hash), leases (zset), released (hash), delayed (zset), bodies (hash), dead (stream), stats (hash), flows (zset)
-- ARGV   call, worker, limit, duration, lease, ttl, max_attempts, dead_limit, woken
-- REPLY  {known, next_due, taken, fresh, healed, now}: known 0 = this worker was declared dead, nothing handed out ·
--        next_due ms until a delayed job is due or -1 · taken {entry, fields, count, releases}... · fresh entries
--        and payloads in turn: first deliveries (count 1) of jobs that are their payload and nothing else, after
--        those of taken · healed 1 = the group was missing and was created · now ms of the server's clock
-- COST   6 us + 2-3 us per job
-- duration: ms of these leases, '' for the worker's own (`lease`). ttl: ms for which to register a worker that
-- has no heartbeat, 0 when it must be registered already.
-- @include record
-- @include typed
-- @include clock
-- @include fields
-- @include groups
-- @include hush
-- @include bury
-- @include promote
local lane, jobs, wake, ids, workers, registered = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local leases, released, delayed, bodies, dead, stats, flows = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local worker, limit, duration, lease, ttl = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], tonumber(ARGV[6])
local max_attempts, dead_limit, woken = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9] == '1'
local now = clock()

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
local parked, healed = grouped(jobs, wake, 'XPENDING', 'workers', '-', '+', limit, 'parked')
if parked.err then return parked end
-- The first write is one that a full server permits; after it every other is permitted too.
redis.call('XACK', wake, 'workers', '0-0')
if healed == 1 then redis.call('DEL', leases) end -- they went with the group: no deadline may outlive them
local deadline = tonumber(redis.call('ZSCORE', workers, worker) or 0)
if ttl > 0 then
  if deadline < now then redis.call('HSET', registered, worker, string.format('%.0f', now) .. ' ' .. lease) end
  if deadline < now + ttl then redis.call('ZADD', workers, string.format('%.0f', now + ttl), worker) end
elseif deadline == 0 then
  return {0, -1, {}, {}, healed, now}
end

if woken then healed = math.max(healed, hush(wake)) end
promote(jobs, ids, delayed, bodies, released, stats, now, 100)

local taken, entries = {}, {}
local function claim(rows, bell)
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
    claim(rows, owner == 'bell')
    seen = seen + #rows
    if #rows < asked or #taken == limit or seen > limit + 100 then return end
    asked = limit - #taken
    rows = redis.call('XPENDING', jobs, 'workers', '-', '+', asked, owner)
  end
end
front(parked, 'parked')
if #taken < limit then front(redis.call('XPENDING', jobs, 'workers', '-', '+', limit - #taken, 'bell'), 'bell') end
local fresh = {}
if #taken < limit then
  local read = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', limit - #taken, 'STREAMS', jobs, '>')
  local rows = read and read[1][2] or {}
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

if duration ~= '' then
  for i = 1, #entries do redis.call('ZADD', leases, string.format('%.0f', now + tonumber(duration)), entries[i]) end
end
local next_due, first = -1, redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
if first[2] then next_due = math.max(0, tonumber(first[2]) - now) end
return answer({1, next_due, taken, fresh, healed, now}, entries) -- recorded without the payloads
