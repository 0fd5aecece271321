-- relayed: keep a relay's report on its SQL outbox for a week, or read the last report.
-- KEYS   relayed (hash)
-- ARGV   fields...
-- REPLY  {age, name, value, ...}: age ms since it was told, -1 if nothing was · the fields of the last report
-- COST   5 us
-- fields: names and values, at most 20, over the last report; none to read. `at` is the time of the report.
local now = clock()
if #ARGV > fields then
  redis.call('HSET', relayed, 'at', string.format('%.0f', now), unpack(ARGV, fields, math.min(#ARGV, fields + 19)))
  redis.call('PEXPIRE', relayed, 604800000)
end
local at = redis.call('HGET', relayed, 'at')
if not at then return {-1} end
local reply = {math.max(0, now - tonumber(at))}
for _, word in ipairs(redis.call('HGETALL', relayed)) do reply[#reply + 1] = word end
return reply
