-- flow_events: list jobs of flows that died, or were completed, cancelled or redriven, outside of their flow.
-- KEYS   others...
-- ARGV   limit count
-- REPLY  {number of the key, id, ...}, at most `limit` of a key, to pass on to flow_advance
-- COST   2 us per stage when there is nothing
local reply = {}
local stages = {flows, unpack(others)}
if redis.call('EXISTS', unpack(stages)) == 0 then return reply end
for i = 1, #stages do
  -- The first range is from before there were nonces.
  for _, range in ipairs({{COMPLETED, CANCELLING}, {COMPLETED * NONCES, '+inf'}}) do
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', stages[i], range[1], range[2], 'LIMIT', 0, limit)) do
      reply[#reply + 1], reply[#reply + 2] = i, id
    end
  end
end
return reply
