-- The ID of the last entry of a stream; nil when it is empty.
-- @include page
local function last_of(budget, stream)
  local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  if newest then weigh(budget, newest[2]) end
  return newest and newest[1]
end
-- A page of a stream, as far as it goes when the first page is asked for: *cursor* is where to begin at first, later
-- 'from last'. Answers the page, and where to go on, '' at the end.
local function stretch_of_now(budget, stream, cursor, limit)
  local from, last = string.match(cursor, '^(%S+) (%S+)$')
  if not from then from, last = cursor, last_of(budget, stream) end
  if not last then return {}, '' end
  local page, more = stretch(budget, stream, from, last, limit)
  if #page > 0 then from = '(' .. page[#page][1] end
  return page, more and from .. ' ' .. last or ''
end
