-- flow_find: find the runs that have not ended, by the value of an attribute.
-- KEYS   index (zset)
-- ARGV   prefix, cursor, limit count
-- REPLY  {cursor, ids...}: cursor is '' when these were the last
-- COST   5 us + 0.3 us per run
-- prefix: attribute, LF, value. cursor: the last id found, '' at first.
local page = redis.call('ZRANGEBYLEX', index, '(' .. prefix .. '\n' .. cursor, '(' .. prefix .. '\11', 'LIMIT', 0, limit)
local reply = {''}
for i = 1, #page do reply[i + 1] = string.sub(page[i], #prefix + 2) end
if #page == limit then reply[1] = reply[#reply] end
return reply
