-- list: list one page of the jobs in a state, oldest first, or newest first.
-- KEYS   jobs (stream), stats (hash)
-- ARGV   state, cursor, limit count, newest flag, value...
-- REPLY  {cursor, now, rows}: cursor '' when this was the last page · now ms · rows {entry, fields, state, count,
--        releases, worker, ms}: ms idle when leased, due when delayed, or when blocked, 0 for never; 1 more for a
--        suspended run
-- COST   1-3 us per job; of a value about 1 us per job that is looked at, at most 1,000 of them
-- state: waiting (level by level, parked ones first), running, delayed (then jobs that a rate limit holds back, then
-- runs that sleep), dead; blocked: in no order, some twice if the hash changes meanwhile, then runs that wait for a
-- signal; ended: of the history, with rows as in `find`; `ended:<state>:<kind>` lists only those, where '' is any.
-- newest: dead and ended jobs come newest first; no other state has an index by time.
-- A cursor that begins with 'runs ' skips delayed jobs that have taken no step. Of other jobs it lists the same.
-- value: only waiting jobs of this value, level by level in the order of their line: see of_value.
-- A page ends at about 1 MiB of jobs, or after one that is larger. A cursor of a time begins there: 'ms ' for ended
-- jobs, 'ms-0' for dead letters, 'ms' with newest.
level_streams(stats, levels)
local rows, next_cursor, budget = {}, '', new_budget()
local function releases(entry) return tonumber(redis.call('HGET', released, entry) or 0) or 0 end
local function add(entry, fields, as, count, owner, ms, suspended)
  if fields then
    rows[#rows + 1] = {entry, fields, as, is_undelivered(owner) and 0 or count, releases(entry), owner, ms, suspended}
  end
end
-- Answer a page of a sorted set, and the next cursor. The cursor names the last listed member as 'score member', or is ''
-- at first. Earlier members may have gone since.
local function scored(key, least)
  local score, member = string.match(cursor, '^(%S+) (.*)$') -- a foreign score may be no whole number
  local at = member and redis.call('ZSCORE', key, member) == score
  if newest then
    local rank = at and redis.call('ZREVRANK', key, member)
    local from = rank and rank + 1 or score and redis.call('ZCOUNT', key, '(' .. score, '+inf') or 0
    local last = math.min(from + limit, redis.call('ZCOUNT', key, least or '-inf', '+inf')) - 1
    local page = last >= from and redis.call('ZREVRANGE', key, from, last, 'WITHSCORES') or {}
    return page, #page == 2 * limit and #page
  end
  local rank = at and redis.call('ZRANK', key, member)
  local from = rank and rank + 1 or (score or least) and redis.call('ZCOUNT', key, '-inf', '(' .. (score or least)) or 0
  local page = redis.call('ZRANGE', key, from, from + limit - 1, 'WITHSCORES')
  return page, #page == 2 * limit and #page
end
-- A page of the pending list, of one consumer or of all that are workers.
local function pending(from, as, consumer)
  local page = consumer and redis.pcall('XPENDING', jobs, 'workers', from, '+', limit, consumer)
    or not consumer and redis.pcall('XPENDING', jobs, 'workers', from, '+', limit)
  local page_end = #page == limit and page[#page][1]
  for i = 1, #page do
    if consumer or not is_reserved(page[i][2]) then
      local body = entry_at(budget, jobs, page[i][1])
      if body == false then return page[i - 1][1] end
      local fields = body and tried.fields(turns, page[i][1], body[2], budget)
      local due = consumer == 'limited' and tonumber(redis.call('ZSCORE', limited, page[i][1]) or 0)
        or consumer and runs.due(asleep, page[i][1])
      local suspended = runs.suspended(consumer) and 1 or nil
      add(page[i][1], fields, as, page[i][4], consumer and '' or page[i][2], due or page[i][3], suspended)
    end
  end
  return page_end
end
local wants = of_value(value)
-- A page of the waiting jobs of a value. Each level has jobs in the jobs stream, and then in its own stream.
local function waiting_of_value()
  local level, from = string.match(cursor, '^(%d) (.*)$')
  local part = string.match(cursor, '^(%d) own ') and 'own' or 'jobs'
  level, from = tonumber(level or 0), string.match(from or '', '^%a+ (.*)$') or '-'
  local last_handed = part == 'jobs' and delivered(jobs)
  local page, more = stretch(budget, part == 'own' and levels[level] or jobs, from, '+', 1000)
  for i = 1, #page do
    local entry, fields = page[i][1], page[i][2]
    if #rows == limit then
      page[i], more = nil, true
      break
    end
    from = '(' .. entry
    if wants(fields) and part == 'own' then
      add(entry .. '.' .. level, prioritised(fields, level), 'waiting', 0, '', 0)
    elseif wants(fields) and level_of(fields, levels.n) == level then
      local row = redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1]
      local owner = row and row[2] or ''
      local parked = is_parked(owner) and not runs.suspended(owner)
      local new = not row and (not last_handed or redis.call('XRANGE', jobs, '(' .. last_handed, entry, 'COUNT', 1)[1])
      if new or parked or owner == 'idle' or owner == 'behind' then
        fields = tried.fields(turns, entry, fields, budget)
        add(entry, fields, parked and not is_lined(owner) and 'parked' or 'waiting', row and row[4] or 0, owner, row and row[3] or 0)
      end
    end
  end
  if more then return level .. ' ' .. part .. ' ' .. from end
  if part == 'jobs' and level > 0 then return level .. ' own -' end
  return level < levels.n and level + 1 .. ' jobs -' or ''
end
if state == 'running' then
  -- All leased jobs may be newer than many suspended runs.
  next_cursor = cursor == '' and '-' or cursor
  for _ = 1, math.max(1, math.floor(1000 / limit)) do
    local last = pending(next_cursor, 'leased')
    next_cursor = last and '(' .. last or ''
    if #rows > 0 or not last then break end
  end
elseif state == 'waiting' and wants then
  next_cursor = waiting_of_value()
elseif state == 'waiting' then
  local page, part, level
  next_cursor = cursor
  local q = {
    -- @queue
    levels = levels,
  }
  repeat
    page, part, level, next_cursor = waiting_page(q, next_cursor, limit)
  until #page > 0 or next_cursor == '' or cursor ~= '' -- a first page is empty only if there is no job
  for i = 1, #page do
    local name, fields = page[i][1], page[i][2]
    if part ~= 'new' then
      add(name, fields, (part == 'parked' or part == 'front' or part == 'suspects') and 'parked' or 'waiting', page[i][5], page[i][3], page[i][4])
    else
      if level > 0 then name, fields = name .. '.' .. level, prioritised(fields, level) end
      add(name, fields, 'waiting', 0, '', 0)
    end
  end
elseif state == 'delayed' and string.sub(cursor, 1, 8) == 'limited ' then
  local last = pending(string.sub(cursor, 9), 'delayed', 'limited')
  if last then next_cursor = 'limited (' .. last elseif redis.call('EXISTS', asleep) == 1 then next_cursor = 'asleep -' end
elseif string.sub(cursor, 1, 7) == 'asleep ' then
  local last = pending(string.sub(cursor, 8), state, state == 'delayed' and runs.ASLEEP or runs.WAITS)
  if last then next_cursor = 'asleep (' .. last end
elseif state == 'delayed' then
  local of_runs = string.match(cursor, '^runs (.*)$')
  cursor = of_runs or cursor
  local page, last = scored(delayed)
  for i = 1, #page, 2 do
    local wanted = not of_runs or redis.call('HEXISTS', steps, page[i]) == 1
    local body = wanted and value_of(budget, bodies, page[i])
    if wanted and body == false then
      last = i - 1
      break
    end
    add(page[i], body and stored(body), 'delayed', 0, '', tonumber(page[i + 1]))
  end
  if last then
    next_cursor = (of_runs and 'runs ' or '') .. page[last] .. ' ' .. page[last - 1]
  elseif redis.call('EXISTS', limited) == 1 then
    next_cursor = 'limited -'
  elseif redis.call('EXISTS', asleep) == 1 then
    next_cursor = 'asleep -'
  end
elseif state == 'blocked' then
  local last = scanned(budget, blocked, cursor == '' and '0' or cursor, limit, function(name, value)
    local body = value or value_of(budget, blocked, name)
    add(name, body and stored(body), 'blocked', 0, '', 0)
    if #rows >= limit then budget.left = 0 end
  end)
  if last ~= '0' then next_cursor = last elseif redis.call('EXISTS', asleep) == 1 then next_cursor = 'asleep -' end
elseif string.sub(state, 1, 5) == 'ended' then
  local only, kind = string.match(state, '^ended:(%a*):(.*)$')
  local page, last = scored(ended, string.format('%.0f', too_old(stats) + 1))
  for i = 1, #page, 2 do
    local kept = value_of(budget, ends, page[i])
    if kept == false then
      last = i - 1
      break
    end
    local row, how = ended_row(page[i], kept)
    local right = (only or '') == '' or how == only
    if right and (kind or '') ~= '' then
      right = false
      for j = 1, row and #row[2] or 0, 2 do right = right or row[2][j] == 'kind' and row[2][j + 1] == kind end
    end
    if right then rows[#rows + 1] = row end
  end
  if last then next_cursor = page[last] .. ' ' .. page[last - 1] end
else
  local page, more
  if newest then
    page, more = stretch_back(budget, dead, cursor == '' and '+' or cursor, '-', limit)
  else
    page, more = stretch(budget, dead, cursor == '' and '-' or cursor, '+', limit)
  end
  for i = 1, #page do rows[i] = {page[i][1], page[i][2], 'dead', 0, 0, '', 0} end
  if more then next_cursor = '(' .. page[#page][1] end
end
return {next_cursor, clock(), rows}
