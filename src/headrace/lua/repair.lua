-- repair: find and repair damage by foreign commands, a page at a time. Safe beside all other calls, repairs included.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash)
-- ARGV   call, place, cursor, limit count, lease, dry flag
-- REPLY  {place, cursor, groups, dangling, stranded, undated, hollow, ids_released, ids_taken, leftovers, workers,
--        deleted, enqueued, slots}: place and cursor: where to continue, place '' when done · then the number of repairs of
--        each kind
-- COST   20 us + 3-5 us per entry, id, delayed job and lease looked at, at most about 1 MiB of jobs, 10 us more for
--        each that is mended
-- place and cursor: 'jobs' and '-' at first. lease: ms assumed for unknown workers. dry: write nothing, and
-- answer the damage found. Of jobs that share a free id by hand, each may count then, on pages of their own.

-- In a dry run no command writes: it does nothing, and answers 1. The functions behind it take this table for the server's.
local redis = redis
if dry then
  local server, reads = redis, {}
  local names = 'EXISTS GET HEXISTS HGET HKEYS HLEN HMGET HSCAN LLEN TIME XINFO XLEN XPENDING XRANGE XREVRANGE ZCARD ZRANGEBYLEX ZSCAN ZSCORE'
  for name in string.gmatch(names, '%u+') do reads[name] = true end
  local function only_reading(how)
    return function(name, ...) return not reads[name] and 1 or server[how](name, ...) end
  end
  redis = {call = only_reading('call'), pcall = only_reading('pcall')}
end

-- @fragments
whole(lease)
local q = {
  -- @queue
  levels = level_streams(stats, levels),
}
require_streams(jobs, wake, dead)
require_hashes(ids, registered, released, bodies, blocked, stats, ends, turns, steps, terms, held, shares)
require_sorted_sets(workers, leases, delayed, flows, limited, ended, behind, asleep, slots, stopped, lines, ready, resting)
require_lists(settled)
holds.check(q)
redis.call('XACK', wake, 'workers', '0-0') -- a full server permits it, and then all later writes

-- 1. The findings.
local now = clock()
local budget = new_budget()
local looked = 0
local found = {}
local kinds = {
  'groups', 'dangling', 'stranded', 'undated', 'hollow', 'ids_released', 'ids_taken', 'leftovers', 'workers', 'deleted',
  'enqueued', 'slots',
}
for _, kind in ipairs(kinds) do found[kind] = 0 end

-- @fragments

-- 2. Hashes and sorted sets, name by name.
-- A page of a sorted set: call *check* for each name.
local function walk_set(key, check)
  return function()
    local page = redis.call('ZSCAN', key, cursor, 'COUNT', limit)
    looked = looked + #page[2] / 2
    for i = 1, #page[2], 2 do check(page[2][i]) end
    return page[1] == '0' and '' or page[1]
  end
end
-- A page of a hash: call *check* for each name, and its value if that is known.
local function walk_hash(key, check)
  return function()
    local following = scanned(budget, key, cursor, limit, function(name, value)
      looked = looked + 1
      check(name, value)
    end)
    return following == '0' and '' or following
  end
end
local order = {
  'jobs', 'ids', 'delayed', 'bodies', 'blocked', 'leases', 'released', 'registered', 'workers', 'ends', 'ended', 'turns',
  'asleep', 'steps', 'held', 'slots', 'lines',
}
local parts = {
  jobs = walk_jobs,
  ids = walk_hash(ids, function(id, marker)
    if not carries(id, marker or redis.call('HGET', ids, id)) then
      redis.call('HDEL', ids, id)
      mark_one(flows, id, REMOVED) -- its flow learns that the job is gone
      mended('ids_released')
    end
  end),
  delayed = walk_set(delayed, function(id)
    if redis.call('HEXISTS', bodies, id) == 0 then
      redis.call('ZREM', delayed, id)
      redis.call('HDEL', released, id)
      mended('hollow')
    end
  end),
  bodies = walk_hash(bodies, function(id, value)
    if not redis.call('ZSCORE', delayed, id) then
      redis.call('ZADD', delayed, string.format('%.0f', now), id) -- its due time is lost
      mended('undated')
    end
    if redis.call('HGET', ids, id) == 'delayed' then return end
    local body = value or value_of(budget, bodies, id)
    if body and parse(stored(body)).id == id then take_id(id, 'delayed') end
  end),
  blocked = walk_hash(blocked, function(id) take_id(id, 'blocked') end),
  leases = walk_set(leases, function(entry)
    local row = row_of(entry)
    local shield = entry == 'lines' and q.agreed_on -- it stays until a lease finds no line: see features/limits.lua
    if lost_group or dangles(entry) or would_park(entry) then return end
    if not shield and (not row or is_reserved(row[2]) and not runs.suspended(row[2])) then
      redis.call('ZREM', leases, entry)
      mended('leftovers')
    end
  end),
  released = walk_hash(released, function(name)
    local there_too = string.match(name, '^%d+%-%d+$') and row_of(name)
    if not there_too and not redis.call('ZSCORE', delayed, name) and not job_at(name) then
      redis.call('HDEL', released, name)
      mended('leftovers')
    end
  end),
  registered = walk_hash(registered, function(worker)
    if not redis.call('ZSCORE', workers, worker) then
      redis.call('HDEL', registered, worker)
      mended('workers')
    end
  end),
  ends = walk_hash(ends, function(id)
    if not redis.call('ZSCORE', ended, id) then
      redis.call('HDEL', ends, id)
      mended('leftovers')
    end
  end),
  ended = walk_set(ended, function(id)
    if redis.call('HEXISTS', ends, id) == 0 then
      redis.call('ZREM', ended, id)
      mended('leftovers')
    end
  end),
  turns = walk_hash(turns, function(name, head)
    local kind, rest = string.sub(name, 1, 1), string.sub(name, 2)
    local of_entry = kind == 'e' or kind == 'a'
    if of_entry and dangles(rest) then return end
    if kind == 'a' and (redis.call('HEXISTS', turns, 'e' .. rest) == 1 or redis.call('HEXISTS', turns, name) == 0) then
      return -- it goes with the other, or has gone
    end
    if of_entry and not job_at(rest) then
      forget_turns(q, {rest})
      mended('leftovers')
    elseif kind == 'k' and redis.call('HEXISTS', turns, 'e' .. (head or redis.call('HGET', turns, name) or '')) == 0 then
      pass_turns(q, {rest})
      mended('leftovers')
    end
  end),
  asleep = walk_set(asleep, function(entry)
    local row = row_of(entry)
    if not dangles(entry) and (not row or not runs.suspended(row[2])) then
      redis.call('ZREM', asleep, entry)
      mended('leftovers')
    end
  end),
  held = walk_hash(held, function(entry)
    if not lost_group and not dangles(entry) and not is_leased(q, entry) then
      holds.give_back(q, {entry})
      mended('slots')
    end
  end),
  slots = walk_set(slots, function(member)
    local place = string.match(member, ' (%l%d+%l%d+)$')
    if lost_group then return end
    if not place or redis.call('HEXISTS', held, holds.entry(place)) == 0 and not would_hold(holds.entry(place)) then
      redis.call('ZREM', slots, member)
      mended('slots')
    end
  end),
  lines = walk_set(lines, function(member)
    local place = dry and string.match(member, ' (%l%d+%l%d+)%+?=?[%d.e+-]*$')
    if not is_place(q, member) or place and dangles(holds.entry(place)) then
      redis.call('ZREM', lines, member)
      mended('leftovers')
    end
  end),
  steps = walk_hash(steps, function(name)
    local id, record = string.match(name, '^([^\t]*)\t?(.*)$')
    if name == runs.why(id) and redis.call('ZSCORE', flows, id) then return end -- its flow has not seen it yet
    local letter = string.match(record, '^a') and redis.call('HGET', steps, name)
    if letter and redis.call('HEXISTS', steps, letter) == 1 then return end -- children in other slots need it
    if record ~= '' and redis.call('HEXISTS', steps, id) == 0 then
      mended('leftovers', redis.call('HDEL', steps, name))
    elseif record == '' and (is_stale_run(q, id) or would_be_stale(id)) then
      runs.forget(steps, id)
      mended('leftovers')
    end
  end),
  workers = walk_set(workers, function(worker)
    if redis.call('HEXISTS', registered, worker) == 0 then
      redis.call('HSET', registered, worker, string.format('%.0f', now) .. ' ' .. lease)
      mended('workers')
    end
  end),
}
for level = q.levels.n, 1, -1 do
  table.insert(order, 2, 'level:' .. level)
  parts[order[2]] = walk_level(level)
end

-- 3. At the end, the counters.
-- The law of conservation holds again: missing jobs count as deleted, surplus jobs as enqueued.
local function settle()
  local names = {'completed', 'cancelled', 'deleted', 'dead_trimmed', 'enqueued', 'added'}
  local numbers = redis.call('HMGET', stats, unpack(names))
  for i = 1, #names do numbers[i] = tonumber(numbers[i] or 0) end
  local missing = numbers[5] - numbers[1] - numbers[2] - numbers[3] - numbers[4]
  missing = missing - redis.call('XLEN', jobs) - redis.call('HLEN', blocked) - redis.call('XLEN', dead)
  missing = missing - (dry and redis.call('HLEN', bodies) or redis.call('ZCARD', delayed)) -- each has the other then
  for _, stream in ipairs(q.levels) do missing = missing - redis.call('XLEN', stream) end
  local added = ever_added(jobs, q.levels)
  if added and added < numbers[6] then -- the stream was created again
    redis.call('HSET', stats, 'added', added)
  elseif added then
    missing = missing + added - numbers[6]
  end
  if missing ~= 0 then
    local kind = missing > 0 and 'deleted' or 'enqueued'
    mended(kind, math.abs(missing))
    redis.call('HINCRBY', stats, kind, found[kind])
  end
end

-- 4. As many steps as the budget allows.
local at = 1
while order[at] and order[at] ~= place do at = at + 1 end
if not order[at] then error('ARGUMENT ' .. place .. ': no such place', 0) end
repeat
  cursor = parts[order[at]]()
  if cursor == '' then at, cursor = at + 1, '0' end
until at > #order or looked >= limit or fitting(budget, 1) == 0
if at > #order then settle() end
local reply = {order[at] or '', cursor}
for i, kind in ipairs(kinds) do reply[i + 2] = found[kind] end
return answer(reply)
