-- trends: read a queue's counts of the past, minute by minute or hour by hour, if it is declared to have trends.
-- KEYS   stats (hash), trends (string)
-- ARGV   hourly flag, number int
-- REPLY  {now, kept, records}: now ms · kept 1 if trends are declared · records of the last `number` minutes or hours,
--        the oldest first, 36 bytes each; ignore a record whose time does not fit its place
-- COST   5 us + 10 us per 1,000
-- lib/trend_records.lua describes a record. number: at most 2,880 minutes, or 2,160 hours.
local now, records = clock(), ''
local ring, place = trend_ring(hourly, now)
number = math.max(1, math.min(number, ring.size))
local function part(from, to) return redis.call('GETRANGE', trends, bytes_of(ring, from), bytes_of(ring, to + 1) - 1) end
if number > place + 1 then records = part(place + 1 + ring.size - number, ring.size - 1) end
return {now, redis.call('HEXISTS', stats, 'trends'), records .. part(math.max(0, place + 1 - number), place)}
