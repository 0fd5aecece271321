-- A page of waiting jobs, level by level: parked jobs, and in a queue with terms jobs that came back to their line; then,
-- with the first level, suspects (see suspects), jobs that only woke a reader, and jobs behind another job of their key;
-- then jobs in lines that were never leased, and new jobs. *place*: where to start, such as 'new:1 -'; any other value: at
-- the start. *last*: where to end, or nil. Answers rows {entry, fields, consumer, ms idle, count}, without fields if the
-- entry was removed by hand; which of the seven kinds they are, their level, and where to continue, '' at the end.
local function waiting_page(q, place, limit, last)
  local part, level, from = string.match(place, '^(%a+):(%d) (.*)$')
  part, level, from = part or 'parked', tonumber(level or 0), from or '-'
  if level > q.levels.n then error('ARGUMENT ' .. place .. ': no such level', 0) end
  local page, more, budget, following = {}, false, new_budget(), ''
  if part == 'new' then
    local handed = level == 0 and from == '-' and delivered(q.jobs)
    if handed then from = '(' .. handed end
    page, more = stretch(budget, q.levels[level] or q.jobs, from, last or '+', limit)
    for i = 1, level == 0 and #page or 0 do -- some have been retried, if their group was lost
      page[i][2] = tried.fields(q.turns, page[i][1], page[i][2], budget)
    end
    if level < q.levels.n then following = 'parked:' .. level + 1 .. ' -' end
  else
    local order, at = waiting_consumers(level), 1
    while order[at] and order[at][1] ~= part do at = at + 1 end
    if not order[at] then error('ARGUMENT ' .. place .. ': no such place', 0) end
    local rows = redis.pcall('XPENDING', q.jobs, 'workers', from, last or '+', limit, order[at][2])
    more = #rows == limit
    for i = 1, #rows do
      local body = entry_at(budget, q.jobs, rows[i][1])
      if body == false then
        more = true
        break
      end
      local fields = body and tried.fields(q.turns, rows[i][1], body[2], budget)
      page[i] = {rows[i][1], fields, rows[i][2], rows[i][3], rows[i][4]}
    end
    -- A queue without terms has no lines: its pages pass over them.
    repeat
      at = at + 1
      local line = order[at] and (order[at][1] == 'front' or order[at][1] == 'line')
    until not line or redis.pcall('XPENDING', q.jobs, 'workers', '-', '+', 1, order[at][2])[1]
    following = (order[at] and order[at][1] or 'new') .. ':' .. level .. ' -'
  end
  if more then following = part .. ':' .. level .. ' (' .. page[#page][1] end
  return page, part, level, following
end
