-- A prototype of what ends leases: complete, and the slots are given back.
-- KEYS   jobs, held, settled
-- ARGV   entries...
local time = redis.call('TIME')
redis.call('XACK', KEYS[1], 'workers', unpack(ARGV))
local gone = redis.call('XDEL', KEYS[1], unpack(ARGV))
local slots, rows = redis.call('HMGET', KEYS[2], unpack(ARGV)), {}
for i = 1, #slots do
  if slots[i] then rows[#rows + 1] = slots[i] end
end
redis.call('HDEL', KEYS[2], unpack(ARGV))
if #rows > 0 then redis.call('RPUSH', KEYS[3], string.format('@%.3f', time[1] * 1000 + time[2] / 1000), unpack(rows)) end
return gone
