-- A page of what waits, level by level: what is parked, what only rang (of the first level), what is new. *place*: where to
-- look, such as 'new:1 -'; at first anything else. Answers rows of the pending list or the stream, which of the three they
-- are, their level, and where to go on, '' at the end.
local function waiting_page(q, place, limit)
  local part, level, from = string.match(place, '^(%a+):(%d) (.*)$')
  part, level, from = part or 'parked', tonumber(level or 0), from or '-'
  local page, following = nil, part == 'parked' and level == 0 and 'bell:0 -' or 'new:' .. level .. ' -'
  if part == 'new' then
    local last = level == 0 and from == '-' and delivered(q.jobs)
    if last then from = '(' .. last end
    page = redis.call('XRANGE', q.levels[level] or q.jobs, from, '+', 'COUNT', limit)
    following = level < q.levels.n and 'parked:' .. level + 1 .. ' -' or ''
  else
    page = redis.pcall('XPENDING', q.jobs, 'workers', from, '+', limit, part == 'bell' and 'bell' or front_of(level))
  end
  if #page == limit then following = part .. ':' .. level .. ' (' .. page[#page][1] end
  return page, part, level, following
end
