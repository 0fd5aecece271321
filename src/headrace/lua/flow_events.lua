-- flow_events: jobs of flows that something happened to outside: they died, or were completed, cancelled or redriven.
-- KEYS   flows (zset), those of the flow's other stages...
-- ARGV   limit
-- REPLY  {number of the key, id, ...}, at most `limit` of a key: to be passed on to flow_advance
-- COST   2 us per stage when there is nothing
local flows, limit = KEYS[1], ARGV[1]
local reply = {}
if redis.call('EXISTS', flows, unpack(KEYS, 2)) == 0 then return reply end
for i = 1, #KEYS do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[i], 1, '+inf', 'LIMIT', 0, limit)) do
    reply[#reply + 1], reply[#reply + 2] = i, id
  end
end
return reply
