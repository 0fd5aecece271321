-- list: one page of the jobs in a state, oldest first.
-- KEYS   jobs (stream), released (hash), delayed (zset), bodies (hash), dead (stream), limited (zset), stats (hash), levels...
-- ARGV   state, cursor, limit
-- REPLY  {cursor, now, rows}: cursor '' when this was the last page · now ms · rows {entry, fields, state, count,
--        releases, worker, ms}: ms idle when leased, due when delayed
-- COST   1-3 us per job
-- state: waiting (level by level, parked ones first), running, delayed (then those that a rate limit holds back), dead. Leased rows cost one XRANGE each.
-- @include clock
-- @include delivered
-- @include nobody
-- @include levels
-- @include waiting
local jobs, released, delayed, bodies, dead, limited, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local levels = behind(stats, 8)
local state, cursor, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local rows, next_cursor = {}, ''
local function releases(entry) return tonumber(redis.call('HGET', released, entry) or 0) end
local function pending(row, as)
  local body = redis.call('XRANGE', jobs, row[1], row[1])[1]
  local count = row[2] == 'bell' and 0 or row[4] -- to wake a reader is no delivery
  if body then rows[#rows + 1] = {row[1], body[2], as, count, releases(row[1]), row[2], row[3]} end
end
if state == 'running' then
  local from = cursor == '' and '-' or cursor
  local page = redis.pcall('XPENDING', jobs, 'workers', from, '+', limit)
  for i = 1, #page do
    if not nobody(page[i][2]) then pending(page[i], 'leased') end
  end
  if #page == limit then next_cursor = '(' .. page[#page][1] end
elseif state == 'waiting' then
  local page, part, level, following = waiting_page({jobs = jobs, levels = levels}, cursor, limit)
  for i = 1, #page do
    if part == 'new' then
      local name, fields = page[i][1], page[i][2]
      if level > 0 then name, fields = name .. '.' .. level, prioritised(fields, level) end
      rows[i] = {name, fields, 'waiting', 0, releases(name), '', 0}
    else
      pending(page[i], part == 'parked' and 'parked' or 'waiting')
    end
  end
  next_cursor = following
elseif state == 'delayed' and string.sub(cursor, 1, 8) == 'limited ' then
  local page = redis.pcall('XPENDING', jobs, 'workers', string.sub(cursor, 9), '+', limit, 'limited')
  for i = 1, #page do
    page[i][2], page[i][3] = '', tonumber(redis.call('ZSCORE', limited, page[i][1]) or 0)
    pending(page[i], 'delayed')
  end
  if #page == limit then next_cursor = 'limited (' .. page[#page][1] end
elseif state == 'delayed' then
  -- The cursor is the last job listed, 'due id': those before it may have been promoted, or cancelled, since.
  local due, id = string.match(cursor, '^(%d+) (.*)$')
  local rank = id and redis.call('ZSCORE', delayed, id) == due and redis.call('ZRANK', delayed, id)
  local from = rank and rank + 1 or due and redis.call('ZCOUNT', delayed, '-inf', '(' .. due) or 0
  local page = redis.call('ZRANGE', delayed, from, from + limit - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    local body = redis.call('HGET', bodies, page[i])
    if body then rows[#rows + 1] = {page[i], cmsgpack.unpack(body), 'delayed', 0, releases(page[i]), '', tonumber(page[i + 1])} end
  end
  if #page == 2 * limit then
    next_cursor = page[#page] .. ' ' .. page[#page - 1]
  elseif redis.call('EXISTS', limited) == 1 then
    next_cursor = 'limited -'
  end
else
  local page = redis.call('XRANGE', dead, cursor == '' and '-' or cursor, '+', 'COUNT', limit)
  for i = 1, #page do rows[i] = {page[i][1], page[i][2], 'dead', 0, 0, '', 0} end
  if #page == limit then next_cursor = '(' .. page[#page][1] end
end
return {next_cursor, clock(), rows}
