-- move: move jobs that wait (parked, waiting, delayed) to the back of another queue, on a cluster of the same group.
-- KEYS   lane (string), jobs (stream), ids (hash), stats (hash), wake (stream), target...
-- ARGV   call, cursor, limit count, wanted...
-- REPLY  {moved, cursor}: cursor '' when that was all, '-' from the start
-- COST   about 15 us per job, at most 1 MiB of them
-- cursor: '-' at first; jobs that come to a stream, or become due, after the first call stay.
-- target: wake (stream), then the first six keys behind the lane, in this order, `events`, `steps` and `cancels` of the other
-- queue, then the streams of the levels behind the first of this one, and as many of the other, where a job goes to its own level,
-- as far as there is one. wanted: ids of the jobs, at most 1,000; none for all. A job keeps its id, headers, attempts,
-- times and records, a delayed one its moment, but one that a rate limit holds back goes to the back and under the
-- limits there; one whose id is taken there stays where it is, and so does one of a flow, a child of a run, a run that
-- sleeps or waits for a signal, and one that has children in other slots. Here it counts as deleted, there as enqueued. The header `headrace-from` is added, with the queue of its
-- first enqueue.
local to_wake, to_jobs, to_ids, to_released, to_delayed, to_bodies, to_stats, to_events, to_steps, to_cancels = unpack(target)
local half = (#target - 10) / 2 -- the streams of our levels, then of the target's levels
local q = {
  -- @queue without asleep
  levels = level_streams(stats, {unpack(target, 11, 10 + half)}),
}
local other = {wake = to_wake, jobs = to_jobs, stats = to_stats, levels = {unpack(target, 11 + half)}}
other.levels.n = math.min(half, tonumber(redis.call('HGET', to_stats, 'levels') or 0))
require_streams(jobs, wake, to_jobs, to_wake, unpack(other.levels))
require_hashes(ids, released, bodies, stats, turns, steps, links, to_ids, to_released, to_bodies, to_stats, to_steps)
require_sorted_sets(delayed, to_delayed, flows, leases, limited, behind, to_cancels)
holds.check(q)
local listening, heard_there = listeners(stats, events, 'deleted'), listeners(to_stats, to_events, 'added')
require_history(listening.history, ends, ended)
local added, late, ids_moved, budget = 0, 0, {}, new_budget()
local function stays(id)
  return redis.call('HEXISTS', to_ids, id) == 1 or redis.call('ZSCORE', flows, id) or is_entry_id(other, id)
    or redis.call('HEXISTS', links, id) == 1 or runs.waits_away(steps, id)
end
local function move_run(id)
  local run = redis.call('EXISTS', steps) == 1 and runs.read(steps, id)
  if run then weigh(budget, runs.carry(steps, id, run, to_steps, id)) end
end
local function name_of(stream) return string.match(stream, ':([^:]*):jobs$') or stream end
local function add_origin(headers)
  for i = 1, #headers, 2 do
    if headers[i] == 'headrace-from' then return end
  end
  table.insert(headers, 1, name_of(jobs))
  table.insert(headers, 1, 'headrace-from')
end
local function put(entry, fields, deliveries, level)
  local own, headers = parse(level and prioritised(fields, level) or fields)
  if level then entry = entry .. '.' .. level end
  local id, spent = own.id or entry, tonumber(own.attempt or 0) + deliveries
  if stays(id) then return end
  local releases = redis.call('HGET', released, entry)
  depart(q, {entry}, {ids = {id}})
  own.id, own.attempt = id, spent > 0 and string.format('%.0f', spent) or nil
  own.enq = own.enq or string.match(entry, '^%d+')
  add_origin(headers)
  local moved = append(other, compose(own, headers))
  redis.call('HSET', to_ids, id, moved)
  if releases then redis.call('HSET', to_released, moved, releases) end
  move_run(id)
  added, ids_moved[#ids_moved + 1] = added + 1, id
end
local function put_late(id)
  local body, due = redis.call('HGET', bodies, id), redis.call('ZSCORE', delayed, id)
  if body then weigh(budget, {body}) end
  if not body or not due or stays(id) then return end
  local own, headers = parse(stored(body))
  local releases = redis.call('HGET', released, id)
  add_origin(headers)
  depart_delayed(q, {id})
  redis.call('HSET', to_bodies, id, cmsgpack.pack(compose(own, headers)))
  redis.call('ZADD', to_delayed, due, id)
  if own.id == id then redis.call('HSET', to_ids, id, 'delayed') end
  if releases then redis.call('HSET', to_released, id, releases) end
  move_run(id)
  late, ids_moved[#ids_moved + 1] = late + 1, id
end

local part, level, from, last, last_behind = string.match(cursor, '^(%a+):?(%d?) (%S+) ?(%S*) ?(%S*)$')
if wanted <= #ARGV then
  local following = ''
  for i = wanted - 1 + (tonumber(cursor) or 1), #ARGV do
    if fitting(budget, 1) == 0 then
      following = string.format('%.0f', i - wanted + 1) -- the cursor is the number of the next job
      break
    end
    local id = ARGV[i]
    local entry, fields, is_one = redis.call('HGET', ids, id), nil, nil
    if not entry then
      is_one, fields = is_entry_id(q, id)
      entry = is_one and id
      if fields then weigh(budget, fields) end
    end
    if entry == 'delayed' then
      put_late(id)
    elseif entry and entry ~= 'blocked' then
      local stream, number, behind_first = entry_of(q, entry)
      local row = not behind_first and redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1] -- none without a group
      local waits = not row or is_reserved(row[2]) and not runs.suspended(row[2])
      if stream and waits and not fields then
        local body = redis.call('XRANGE', stream, number, number)[1]
        fields = body and body[2]
        if fields then weigh(budget, fields) end
      end
      if waits and fields then
        put(number, tried.fields(turns, number, fields, budget), row and not is_undelivered(row[2]) and row[4] or 0, behind_first)
      end
    end
  end
  cursor = following
elseif part ~= 'delayed' then
  if not part then part, level, from = 'limited', 0, '-' end
  if not last or last == '' then last = last_entry_id(budget, jobs) or '0-0' end
  -- Jobs that a rate limit holds back are older than waiting ones.
  local later, done = part == 'limited' and redis.pcall('XPENDING', jobs, 'workers', from, last, limit, 'limited') or {}, 0
  for i = 1, #later do
    local body = entry_at(budget, jobs, later[i][1])
    if body == false then break end
    if body then put(later[i][1], tried.fields(turns, later[i][1], body[2], budget), later[i][4]) end
    done, from = i, '(' .. later[i][1]
  end
  if done < #later or #later == limit then
    cursor = 'limited:0 ' .. from .. ' ' .. last
  elseif #later > 0 then
    cursor = 'parked:0 - ' .. last
  else
    if part == 'limited' then part, level, from = 'parked', 0, '-' end
    local ahead = part == 'new' and tonumber(level) or 0
    if ahead > 0 and last_behind == '' then last_behind = last_entry_id(budget, q.levels[ahead] or jobs) or '0-0' end
    local page, kind, at, following =
      waiting_page(q, part .. ':' .. level .. ' ' .. from, limit, ahead > 0 and last_behind or last)
    -- Some new jobs may have been handed out since the previous page.
    local fresh, leased = kind == 'new' and at == 0 and #page > 0, {}
    local rows = fresh and redis.pcall('XPENDING', jobs, 'workers', page[1][1], page[#page][1], limit) or {}
    for i = 1, #rows do leased[rows[i][1]] = true end
    for i = 1, #page do
      if kind ~= 'new' then
        if page[i][2] then put(page[i][1], page[i][2], is_undelivered(page[i][3]) and 0 or page[i][5]) end
      elseif not leased[page[i][1]] then
        put(page[i][1], page[i][2], 0, at > 0 and at or nil)
      end
    end
    local same = ahead > 0 and string.match(following, '^new:' .. ahead .. ' ')
    cursor = following == '' and 'delayed 0' or following .. ' ' .. last .. (same and ' ' .. last_behind or '')
  end
else
  -- Jobs that an earlier page read and that still wait, and the number of jobs to read in all.
  local stay, left = whole(from), last == '' and redis.call('ZCARD', delayed) or whole(last)
  local page, seen = redis.call('ZRANGE', delayed, stay, stay + math.min(limit, left) - 1), 0
  for i = 1, left > 0 and #page or 0 do
    if fitting(budget, 1) == 0 then break end
    put_late(page[i])
    seen = i
  end
  left = left - seen
  cursor = seen > 0 and left > 0 and string.format('delayed %.0f %.0f', stay + seen - late, left) or ''
end
if cursor == '' then tidy_lines(q, 0) end
if added + late > 0 then
  redis.call('HINCRBY', stats, 'deleted', added + late)
  redis.call('HINCRBY', to_stats, 'enqueued', added + late)
end
local over, whither = {}, 'moved to ' .. name_of(to_jobs)
for i, id in ipairs(ids_moved) do over[i] = {id = id, reason = whither} end
keep_ends(listening.history, ends, ended, 'deleted', over)
if #ids_moved > 0 then redis.call('ZREM', to_cancels, unpack(ids_moved)) end
if listening.deleted then publish(events, 'deleted', ids_moved) end
if heard_there.added then publish(to_events, 'added', ids_moved) end
return answer({added + late, cursor})
