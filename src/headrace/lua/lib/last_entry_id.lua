-- The ID of the last entry of a stream; nil when it is empty.
local function last_entry_id(budget, stream)
  local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  if newest then weigh(budget, newest[2]) end
  return newest and newest[1]
end
-- A page of the entries that the stream had at the call for the first page. *cursor*: where to begin, and in later
-- calls 'from last'. Answers the page and the next cursor, '' at the end.
local function page_until_now(budget, stream, cursor, limit)
  local from, last = string.match(cursor, '^(%S+) (%S+)$')
  if not from then from, last = cursor, last_entry_id(budget, stream) end
  if not last then return {}, '' end
  local page, more = stretch(budget, stream, from, last, limit)
  if #page > 0 then from = '(' .. page[#page][1] end
  return page, more and from .. ' ' .. last or ''
end
