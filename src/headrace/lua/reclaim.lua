-- reclaim: put the jobs of dead workers and of expired leases back to the front; promote what is due.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), workers (zset), registered (hash), leases (zset), released (hash), delayed (zset), bodies (hash), ticks (zset), stats (hash), limited (zset), events (channel), levels...
-- ARGV   call, worker, timeout, lease, cursor, limit, ageing
-- REPLY  {moved, cursor, declared, more, promoted, next_due, next_tick}: cursor is where the sweep goes on, '-' from the start · declared
--        workers newly found dead · more 1 = a dead worker has more jobs than one call moves, or a level more that rise · ms until the next
--        delayed job, and the next tick of a schedule, is due, or -1
-- COST   10 us + 1.5 us per job moved + 0.5 us per pending entry looked at, at most `limit`
-- A worker is dead when its deadline has passed. Nobody declares others dead before it has been alive, and coming
-- here, for one unbroken `timeout`: after a server restart, everyone looks dead at once. lease: ms assumed for
-- consumers that never registered. ageing: ms after which a job goes to the level before its own, 0 never.
-- @include record
-- @include clock
-- @include fields
-- @include groups
-- @include hush
-- @include wake
-- @include levels
-- @include park
-- @include bereave
-- @include promote
-- @include rise
-- @include nobody
-- @include named
-- @include tell
local lane, jobs, wake_stream, ids, workers, registered = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local leases, released, delayed, bodies, ticks, stats = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local limited, events = KEYS[13], KEYS[14]
local worker, timeout, lease, cursor, limit = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local ageing = tonumber(ARGV[7])
local known = recorded()
if known then return known end
local q = {
  jobs = jobs, wake = wake_stream, ids = ids, released = released, delayed = delayed, bodies = bodies, stats = stats,
  levels = behind(stats, 15),
}
local now = clock()
local heard = ears(stats, events, 'reclaimed', 'promoted', 'added', 'leased', 'completed', 'retried', 'released', 'dead',
                   'cancelled', 'deleted', 'redriven') -- all there are
local rows, healed = grouped(jobs, wake_stream, 'XPENDING', 'workers', cursor, '+', limit)
if rows.err then return rows end
redis.call('ZREM', workers, '') -- permitted on a full server, and then so is the rest
if healed == 1 then redis.call('DEL', leases) end
hush(wake_stream) -- readers that were cancelled never come for what woke them

-- What we know of ourselves: 'since lease', and when we last came here. After a gap longer than `timeout` everybody
-- may look dead because the server, or we, stood still: our time starts anew.
local since, term, seen = string.match(redis.call('HGET', registered, worker) or '', '^(%d+) (%d+) ?(%d*)$')
since = tonumber(since)
local alive = tonumber(redis.call('ZSCORE', workers, worker) or 0) >= now
if alive and not since then since, term, seen = now, ARGV[4], '' end -- somebody removed what was known of us
if since then
  if seen ~= '' and now - tonumber(seen) > timeout then since = now end
  redis.call('HSET', registered, worker, string.format('%.0f %s %.0f', since, term, now))
end
local sure = since and alive and now - since >= timeout
local moved, declared, more = 0, 0, 0
-- Unless we are sure, only who has long been gone and holds nothing is removed: where all come but for a moment,
-- nobody ever is.
local gone = string.format('(%.0f', sure and now or now - 10 * timeout)
local dead = redis.call('ZRANGEBYSCORE', workers, '-inf', gone, 'LIMIT', 0, 10)
for _, name in ipairs(dead) do
  if moved < limit and (sure or not redis.call('XPENDING', jobs, 'workers', '-', '+', 1, name)[1]) then
    if tonumber(redis.call('ZSCORE', workers, name)) > 0 then
      declared = declared + 1
      redis.call('ZADD', workers, 0, name) -- from here on it is told so, however many calls the rest takes
    end
    local number, entries = bereave(jobs, workers, registered, leases, stats, name, limit - moved)
    moved = moved + number
    if heard.reclaimed then tell(events, 'reclaimed', named(jobs, entries), name) end
  end
end
if sure and redis.call('ZRANGEBYSCORE', workers, '-inf', '(' .. string.format('%.0f', now), 'LIMIT', 0, 1)[1] then
  more = 1
end

-- Expired leases of live workers, and of consumers that never registered: a page of the pending list, kept cursor.
local terms, expired, forgotten = {}, {}, 0
local custom = redis.call('EXISTS', leases) == 1
for i = 1, #rows do
  local entry, owner, idle = rows[i][1], rows[i][2], rows[i][3]
  if owner == 'bell' then
    -- It woke a reader that never came for it; wake another.
    if idle >= 1000 then forgotten = 1 end
  elseif owner == 'limited' then
    redis.call('ZADD', limited, 'NX', now, entry) -- somebody lost when it is due
  elseif not nobody(owner) then
    if not terms[owner] then
      local known_as = redis.call('HGET', registered, owner)
      terms[owner] = tonumber(string.match(known_as or '', '^%d+ (%d+)') or lease)
    end
    local deadline = custom and redis.call('ZSCORE', leases, entry)
    if deadline and tonumber(deadline) <= now or not deadline and idle >= terms[owner] then
      -- It may have been parked above, with its dead worker's others.
      local still = redis.call('XPENDING', jobs, 'workers', entry, entry, 1)[1]
      if still and still[2] == owner then expired[#expired + 1] = entry end
    end
  end
end
park(jobs, leases, stats, expired)
if heard.reclaimed then tell(events, 'reclaimed', named(jobs, expired)) end
moved = moved + #expired
local promoted = promote(q, now, 500)
if heard.promoted then tell(events, 'promoted', promoted) end
-- Nothing waits for ever behind others: after `ageing` it is parked a level before, or at the back of that.
for level = 1, ageing > 0 and q.levels.n or 0 do
  local stayed = redis.call('XPENDING', jobs, 'workers', 'IDLE', ageing, '-', '+', 100, front_of(level))
  for i = 1, #stayed do stayed[i] = stayed[i][1] end
  park_at(jobs, front_of(level - 1), stayed)
  if rise(q, level, level - 1, 100, string.format('%.0f', now - ageing)) == 100 or #stayed == 100 then more = 1 end
end
if heard.none then redis.call('HDEL', stats, 'heard') end
if redis.call('HEXISTS', stats, 'paused') == 0 then wake(wake_stream, moved + forgotten) end
local function ahead(key)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return first and math.max(0, tonumber(first) - now) or -1
end
cursor = #rows == limit and '(' .. rows[#rows][1] or '-'
return answer({moved, cursor, declared, more, #promoted, ahead(delayed), ahead(ticks)})
