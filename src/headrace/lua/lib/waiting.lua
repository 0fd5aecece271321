-- A page of waiting jobs, level by level: parked jobs; then, with the first level, suspects (see suspects), jobs that
-- only woke a reader, and jobs behind another job of their key; then new jobs. *place*: where to start, such as 'new:1
-- -'; any other value: at the start. *last*: where to end, or nil. Answers rows {entry, fields, consumer, ms idle,
-- count}, without fields if the entry was removed by hand; which of the five kinds they are, their level, and where to
-- continue, '' at the end.
-- @include delivered
-- @include levels
-- @include page
local function waiting_page(q, place, limit, last)
  local part, level, from = string.match(place, '^(%a+):(%d) (.*)$')
  part, level, from = part or 'parked', tonumber(level or 0), from or '-'
  if level > q.levels.n then error('ARGUMENT ' .. place .. ': no such level', 0) end
  local page, more, budget = {}, false, new_budget()
  local following = 'new:' .. level .. ' -'
  if level == 0 and part == 'parked' then following = 'suspects:0 -' end
  if part == 'suspects' then following = 'bell:0 -' end
  if part == 'bell' then following = 'behind:0 -' end
  if part == 'new' then
    local handed = level == 0 and from == '-' and delivered(q.jobs)
    if handed then from = '(' .. handed end
    page, more = stretch(budget, q.levels[level] or q.jobs, from, last or '+', limit)
    following = level < q.levels.n and 'parked:' .. level + 1 .. ' -' or ''
  else
    local owner = part == 'parked' and front_of(level) or part == 'suspects' and SUSPECTS or part
    local rows = redis.pcall('XPENDING', q.jobs, 'workers', from, last or '+', limit, owner)
    more = #rows == limit
    for i = 1, #rows do
      local body = entry_at(budget, q.jobs, rows[i][1])
      if body == false then
        more = true
        break
      end
      page[i] = {rows[i][1], body and body[2], rows[i][2], rows[i][3], rows[i][4]}
    end
  end
  if more then following = part .. ':' .. level .. ' (' .. page[#page][1] end
  return page, part, level, following
end
