-- flow_events: jobs of flows that something happened to outside: they died, or were completed, cancelled or redriven.
-- KEYS   flows (zset), others...
-- ARGV   limit count
-- REPLY  {number of the key, id, ...}, at most `limit` of a key: to be passed on to flow_advance
-- COST   2 us per stage when there is nothing
-- @include marks
local reply = {}
if redis.call('EXISTS', flows, unpack(KEYS, 2)) == 0 then return reply end
for i = 1, #KEYS do
  for _, range in ipairs({{COMPLETED, CANCELLING}, {COMPLETED * NONCES, '+inf'}}) do -- the first: from before there were nonces
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[i], range[1], range[2], 'LIMIT', 0, limit)) do
      reply[#reply + 1], reply[#reply + 2] = i, id
    end
  end
end
return reply
