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
-- @feature leases
-- @feature delayed
-- @feature dead
-- @feature workers
-- @feature history
-- @feature fair
-- @include dry_run
-- @include added
-- @include agreed
-- @include clock
-- @include fields
-- @include limits
-- @include is_reserved
-- @include levels
-- @include flows
-- @include number
-- @include page
-- @include record
-- @include requeue_front
-- @include scanned
-- @include require_types
-- @include depart
-- @include runs
-- @include stale_lines
-- @include stale_runs
-- @include stale_slots
-- @include stored
-- @include ordered
-- @include wake_many
whole(lease)
local known = recorded()
if known then return known end
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

-- 1. Reading, and recording repairs.
local looked, now, found, budget = 0, clock(), {}, new_budget()
local kinds = {'groups', 'dangling', 'stranded', 'undated', 'hollow', 'ids_released', 'ids_taken', 'leftovers', 'workers', 'deleted', 'enqueued', 'slots'}
for _, kind in ipairs(kinds) do found[kind] = 0 end
local function mended(kind, number) found[kind] = found[kind] + (number or 1) end
-- Whether entry ID *a* is after *b*. Lua's numbers do not hold 64 bits.
local function after(a, b)
  local a_ms, a_n = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_n = string.match(b, '^(%d+)-(%d+)$')
  if a_ms == b_ms then a_ms, b_ms = a_n, b_n end
  return #a_ms > #b_ms or #a_ms == #b_ms and a_ms > b_ms
end
local function info(what, stream)
  local named, reply = {}, redis.pcall('XINFO', what, stream)
  if what == 'GROUPS' then
    for _, group in ipairs(reply) do
      for i = 1, #group, 2 do named[group[i]] = group[i + 1] end
      if named.name == 'workers' then return named end
    end
    return
  end
  for i = 1, #reply, 2 do named[reply[i]] = reply[i + 1] end
  return named
end
local function there(name)
  local stream, entry = entry_of(q, name)
  local body = stream and string.match(entry, '^%d+%-%d+$') and redis.pcall('XRANGE', stream, entry, entry)[1]
  if body then weigh(budget, body[2]) end
  return body and body[1] == entry and parse(body[2])
end
-- Whether the job that *marker* names exists, and has this id.
local function carries(id, marker)
  if marker == 'delayed' then return redis.call('HEXISTS', bodies, id) == 1 end
  if marker == 'blocked' then return redis.call('HEXISTS', blocked, id) == 1 end
  local own = there(marker)
  return own and (own.id or marker) == id
end
-- A job takes its id, unless another job has it.
local taken = {} -- on this page, for a dry run
local function take_id(id, marker)
  local present = redis.call('HGET', ids, id)
  if present ~= marker and not (present and carries(id, present)) and not taken[id] then
    redis.call('HSET', ids, id, marker)
    taken[id] = dry
    mended('ids_taken')
    return present
  end
end
-- The same before the ids are walked: in a dry run that walk finds the old owner of the id, which is replaced here.
local function take_id_early(id, marker)
  if take_id(id, marker) and dry then mended('ids_released', -1) end
end

-- 2. The jobs stream, its groups, and the pending list.
-- The groups exist, at their places: before *last*, the end of the stream, and not before the delivered entries.
function q.place_of(delivered, last)
  local right = after(delivered, last) and last or delivered
  local highest = redis.call('XPENDING', jobs, 'workers')[3]
  return highest and after(highest, right) and highest or right
end
local function mend_group(last)
  local ours, theirs = info('GROUPS', jobs), info('GROUPS', wake)
  if theirs and not ours then -- both are created together; without both no job was leased yet
    redis.call('XGROUP', 'CREATE', jobs, 'workers', '0', 'MKSTREAM')
    healing.forget_leases(q)
    mended('groups')
  elseif ours and not theirs then
    redis.call('XGROUP', 'CREATE', wake, 'workers', '0', 'MKSTREAM')
    mended('groups')
  end
  if not ours then return end
  local delivered = ours['last-delivered-id']
  local right = q.place_of(delivered, last)
  if right ~= delivered then
    redis.call('XGROUP', 'SETID', jobs, 'workers', right)
    mended('groups')
  end
end
local function park_stranded(entry, own, level)
  healing.requeue_front(jobs, front_of(level), released, entry, own)
  redis.call('ZREM', leases, entry)
  mended('stranded')
end
-- A suspended run has a deadline of its own that never comes, and a moment when it is due: now, if that was lost.
local function mend_suspended(entry)
  redis.call('ZADD', leases, 'inf', entry)
  if not redis.call('ZSCORE', asleep, entry) then
    redis.call('ZADD', asleep, string.format('%.0f', now), entry)
    wake_many(wake, 1)
    mended('undated')
  end
end
-- In a queue with terms each leased job holds its slots, and each job of the line consumers has a place in a line.
-- Otherwise it goes to the front: the next look puts it into its line.
q.agreed_on = agreed.read(terms)
local function mend_terms(row, fields)
  local entry, owner, idle = row[1], row[2], row[3]
  if not q.agreed_on or is_reserved(owner) and not is_in_line(owner) then return end
  local values, cost = agreed.values(q.agreed_on, fields)
  local line, place = agreed.line(q.agreed_on, level_of(fields, q.levels.n), values), holds.place(entry)
  if is_in_line(owner) then
    local member = line .. ' ' .. place .. (is_lined(owner) and '' or '+') .. holds.cost(cost)
    if redis.call('ZSCORE', lines, member) then return end
    local count = is_lined(owner) and {'RETRYCOUNT', 0, 'JUSTID'} or {'JUSTID'}
    redis.call('XCLAIM', jobs, 'workers', front_of(level_of(fields, q.levels.n)), 0, entry, unpack(count))
    wake_many(wake, 1)
    mended('stranded')
  elseif redis.call('HEXISTS', held, entry) == 0 then
    local text = string.format('%.3f %.0f 1 %d:%s', now - idle, q.agreed_on.mean, #line, line)
    for _, slot in ipairs(q.agreed_on.slots) do
      if values[slot.at] then
        local name = slot.key .. holds.lp(values[slot.at])
        text = text .. holds.lp(name)
        redis.call('ZADD', slots, 0, name .. ' ' .. place)
      end
    end
    redis.call('HSET', held, entry, text)
    q.holding = true
    mended('slots')
  end
end
-- A page of the stream, and the same range of the pending list. The cursor also has the end: 'from end'.
local function walk_jobs()
  local from, last = string.match(cursor, '^(%S+) (%S+)$')
  if not from then
    from, last = '-', info('STREAM', jobs)['last-generated-id']
    mend_group(last)
    if not last then return '' end
  end
  local delivered = (info('GROUPS', jobs) or {})['last-delivered-id']
  if dry and delivered then delivered = q.place_of(delivered, last) end
  local page, more = stretch(budget, jobs, from, last, limit)
  local rows = delivered and redis.call('XPENDING', jobs, 'workers', from, last, limit) or {}
  looked = looked + math.max(#page, #rows)
  local upto, entries, pending, stranded = last, {}, {}, 0
  if more then upto = page[#page][1] end
  if #rows == limit and after(upto, rows[limit][1]) then upto = rows[limit][1] end
  local pages, delivered_too = #page, #rows -- up to the end of the shorter list
  while pages > 0 and after(page[pages][1], upto) do pages = pages - 1 end
  while delivered_too > 0 and after(rows[delivered_too][1], upto) do delivered_too = delivered_too - 1 end
  for i = 1, pages do entries[page[i][1]] = page[i][2] end
  for i = 1, delivered_too do
    local entry = rows[i][1]
    pending[entry] = true
    if not entries[entry] then
      depart(q, {entry}, {})
      mended('dangling')
    elseif runs.suspended(rows[i][2]) then
      mend_suspended(entry)
    else
      mend_terms(rows[i], entries[entry])
    end
  end
  local handed = delivered
  for i = 1, pages do
    local entry, fields = page[i][1], page[i][2]
    local own = #fields == 2 and fields[1] == 'data' and {} or parse(fields)
    if handed and not pending[entry] then
      if after(entry, delivered) then
        handed = nil -- nor were the entries after it
      else
        park_stranded(entry, own, level_of(fields, q.levels.n))
        stranded = stranded + 1
      end
    end
    if own.id and own.id ~= '' and own.id ~= entry then take_id_early(own.id, entry) end
  end
  wake_many(wake, stranded)
  return (more or #rows == limit) and '(' .. upto .. ' ' .. last or ''
end

-- 3. The levels behind the first.
-- A page of the stream of a later level: only the ids of its jobs can be wrong.
local function walk_level(level)
  return function()
    local page, more = stretch(budget, q.levels[level], cursor == '0' and '-' or cursor, '+', limit)
    looked = looked + #page
    for i = 1, #page do
      local id = parse(page[i][2]).id
      if id and id ~= '' then take_id_early(id, page[i][1] .. '.' .. level) end
    end
    return more and '(' .. page[#page][1] or ''
  end
end

-- 4. Hashes and sorted sets, name by name.
-- A page of a sorted set, or of a hash: call *check* for each name.
local function walk_set(key, check)
  return function()
    local page = redis.call('ZSCAN', key, cursor, 'COUNT', limit)
    looked = looked + #page[2] / 2
    for i = 1, #page[2], 2 do check(page[2][i]) end
    return page[1] == '0' and '' or page[1]
  end
end
local function walk_hash(key, check)
  return function()
    local following = scanned(budget, key, cursor, limit, function(name, value)
      looked = looked + 1
      check(name, value)
    end)
    return following == '0' and '' or following
  end
end
-- In a dry run the walk of the jobs has mended nothing yet. Whether it would have removed all data of an entry,
-- with the entry, its deadline, with the group or because it is parked; or taken slots for it.
local lost_group = dry and info('GROUPS', wake) and not info('GROUPS', jobs)
local function row_of(entry) return redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1] end
local function dangles(entry) return dry and row_of(entry) and not there(entry) end
local function would_park(entry)
  local group = dry and not row_of(entry) and there(entry) and info('GROUPS', jobs)
  return group and not after(entry, q.place_of(group['last-delivered-id'], info('STREAM', jobs)['last-generated-id']))
end
local function would_hold(entry) return dry and q.agreed_on and there(entry) and is_leased(q, entry) end
local function would_be_stale(id)
  if not dry or string.sub(id, 1, 1) == '\n' then return false end
  local marker = redis.call('HGET', ids, id)
  if marker and carries(id, marker) then return false end
  return not there(id)
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
      mark(flows, id, REMOVED) -- its flow learns that the job is gone
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
    local row = redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1]
    local shield = entry == 'lines' and q.agreed_on -- it stays until a lease finds no line: see features/limits.lua
    if lost_group or dangles(entry) or would_park(entry) then return end
    if not shield and (not row or is_reserved(row[2]) and not runs.suspended(row[2])) then
      redis.call('ZREM', leases, entry)
      mended('leftovers')
    end
  end),
  released = walk_hash(released, function(name)
    local there_too = string.match(name, '^%d+%-%d+$') and redis.pcall('XPENDING', jobs, 'workers', name, name, 1)[1]
    if not there_too and not redis.call('ZSCORE', delayed, name) and not there(name) then
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
    if of_entry and not there(rest) then
      forget_turns(q, {rest})
      mended('leftovers')
    elseif kind == 'k' and redis.call('HEXISTS', turns, 'e' .. (head or redis.call('HGET', turns, name) or '')) == 0 then
      pass_turns(q, {rest})
      mended('leftovers')
    end
  end),
  asleep = walk_set(asleep, function(entry)
    local row = redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1]
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

-- 5. At the end, the counters.
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

-- 6. As many steps as the budget allows.
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
