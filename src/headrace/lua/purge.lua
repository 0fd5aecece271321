-- purge: remove jobs that wait (delayed, waiting, parked), a page at a time. Leased, blocked and dead jobs stay.
-- KEYS   lane (string), jobs (stream), ids (hash), stats (hash), wake (stream)
-- ARGV   call, cursor, limit count, value...
-- REPLY  {removed, cursor}: cursor is '' when that was all
-- COST   about 3 us per job, at most 1 MiB of them; of a value about 1 us per job that is looked at, at most 1,000 of them
-- value: only jobs of this value: see of_value. Then a job that waits behind others is looked at in its place.
-- cursor: '-' at first. Jobs that come to a stream after the purge reached it stay; delayed jobs that come meanwhile
-- may stay or go. Delayed jobs are removed first, then jobs of the levels after the first, so that no job escapes by
-- coming due or rising. A run that sleeps is delayed; one that waits for a signal is blocked, and stays.
local q = {
  -- @queue
  levels = level_streams(stats, levels),
}
require_streams(jobs, wake)
require_hashes(ids, released, bodies, stats, turns, steps)
require_sorted_sets(leases, delayed, limited, flows, behind, asleep)
holds.check(q)
local listening = listeners(stats, events, 'deleted')
require_history(listening.history, ends, ended)
q.traces = listening.history and runs.room()
local gone, ids_gone, over, budget = 0, {}, {}, new_budget()
local function spent() return budget.left <= 0 or fitting(budget, 1) == 0 end
local function remove(entry, fields, level)
  local own = parse(fields)
  if level then entry = entry .. '.' .. level end
  gone = gone + depart(q, {entry}, {ids = {own.id}, what = REMOVED})
  ids_gone[#ids_gone + 1] = own.id or entry
end

-- The parts of the queue in order: each removes jobs from a given place on, and answers the next place, nil at the end.
local order, parts = {'delayed'}, {}
function parts.delayed(from)
  local page = redis.call('ZSCAN', delayed, from or '0', 'COUNT', limit)
  for i = 1, #page[2], 2 do
    local id = page[2][i]
    if spent() then return from or '0' end -- the next call removes the remaining jobs
    budget.left = budget.left - redis.call('HSTRLEN', bodies, id)
    gone = gone + depart_delayed(q, {id}, REMOVED)
    ids_gone[#ids_gone + 1] = id
  end
  return page[1] ~= '0' and page[1] or nil
end
for level = levels.n, 1, -1 do
  order[#order + 1] = 'level:' .. level
  parts[order[#order]] = function(last)
    local page, following = page_until_now(budget, levels[level], last and '- ' .. last or '-', limit - gone)
    for i = 1, #page do remove(page[i][1], page[i][2], level) end
    return string.match(following, '%S+$')
  end
end
order[#order + 1] = 'jobs'
function parts.jobs(last)
  last = last or last_entry_id(budget, jobs)
  if not last then return nil end
  local owners = {'behind', 'idle', 'limited', 'parked:new', 'parked:front', SUSPECTS, runs.ASLEEP}
  for level = 0, levels.n do owners[#owners + 1] = front_of(level) end
  for _, owner in ipairs(owners) do
    local rows = redis.pcall('XPENDING', jobs, 'workers', '-', last, limit, owner)
    for i = 1, #rows do
      local body = gone < limit and entry_at(budget, jobs, rows[i][1])
      if body == false then return last end
      if body then remove(body[1], body[2]) else depart(q, {rows[i][1]}, {}) end
    end
    if #rows == limit then return last end
  end
  if gone == limit then return last end
  local from = '(' .. (delivered(jobs) or '0-0')
  local page, following = page_until_now(budget, jobs, from .. ' ' .. last, limit - gone)
  for i = 1, #page do remove(page[i][1], page[i][2]) end
  return string.match(following, '%S+$')
end

-- The same for one value: each part goes on behind the last job that it has looked at.
local wants, looks, places = of_value(value), 1000, {}
if wants then
  local t = agreed.read(terms)
  function parts.delayed(from)
    local score, last = string.match(from or '', '^(%S+) (.*)$')
    local rank = last and redis.call('ZSCORE', delayed, last) == score and redis.call('ZRANK', delayed, last)
    rank = rank and rank + 1 or score and redis.call('ZCOUNT', delayed, '-inf', '(' .. score) or 0
    local page = redis.call('ZRANGE', delayed, rank, rank + limit - 1, 'WITHSCORES')
    for i = 1, #page, 2 do
      local body = value_of(budget, bodies, page[i])
      if body == false then return from or '-inf ' end
      if body and wants(stored(body)) then
        gone = gone + depart_delayed(q, {page[i]}, REMOVED)
        ids_gone[#ids_gone + 1] = page[i]
      else
        from = page[i + 1] .. ' ' .. page[i]
      end
    end
    looks = looks - #page / 2
    return #page == 2 * limit and (from or '-inf ') or nil
  end
  local last_handed = delivered(jobs)
  -- Whether an entry waits: it is new, or with a consumer of waiting jobs.
  local function waits(entry)
    local row = redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1]
    if row then return row[2] ~= runs.WAITS and is_reserved(row[2]), row[2] end
    return not last_handed or redis.call('XRANGE', jobs, '(' .. last_handed, entry, 'COUNT', 1)[1], ''
  end
  -- Its place in its line: as leases drop places without jobs one by one, many of them would hold up the value.
  local function note_place(entry, fields, owner)
    local values, cost = agreed.values(t, fields)
    local line = agreed.line(t, level_of(fields, levels.n), values)
    places[#places + 1] = line .. ' ' .. holds.place(entry) .. (is_lined(owner) and '' or '+') .. holds.cost(cost)
  end
  local function at_stream(stream, level)
    return function(from)
      local page, following = page_until_now(budget, stream, from or '-', limit)
      for i = 1, #page do
        local entry, fields = page[i][1], page[i][2]
        local there, owner = level, ''
        if wants(fields) and not level then there, owner = waits(entry) end
        if there and wants(fields) then
          if t and is_in_line(owner) then note_place(entry, fields, owner) end
          remove(entry, fields, level)
        end
      end
      looks = looks - #page
      return following ~= '' and following or nil
    end
  end
  parts.jobs = at_stream(jobs)
  for level = 1, levels.n do parts['level:' .. level] = at_stream(levels[level], level) end
end

local place, from = string.match(cursor, '^(%S+) (.+)$')
local at = 1
while order[at] and place and order[at] ~= place do at = at + 1 end
if not order[at] or not place and cursor ~= '-' then error('ARGUMENT ' .. cursor .. ': no such place', 0) end
if from == '-' then from = nil end
repeat
  from = parts[order[at]](from)
  if not from then at = at + 1 end
until not order[at] or gone >= limit or looks <= 0 or spent()
if #places > 0 then redis.call('ZREM', lines, unpack(places)) end
if not order[at] then tidy_lines(q, 0) end
if gone > 0 then redis.call('HINCRBY', stats, 'deleted', gone) end
for i, id in ipairs(ids_gone) do over[i] = {id = id} end
keep_ends(listening.history, ends, ended, 'deleted', runs.traced(q, over))
if listening.deleted then publish(events, 'deleted', ids_gone) end
return answer({gone, order[at] and order[at] .. ' ' .. (from or '-') or ''})
