-- trends: tell what a queue's counts were, minute by minute or hour by hour, as far as it is declared to have trends.
-- KEYS   stats (hash), trends (string)
-- ARGV   hourly flag, number int
-- REPLY  {now, kept, records}: now ms · kept 1 if they are declared · those of the last so many minutes, or hours,
--        oldest first, 36 bytes each: those whose time is not that of their place are none
-- COST   5 us + 10 us per 1,000
-- What a record is, stands in lib/rings.lua. number: at most 2,880 minutes, or 2,160 hours.
-- @include clock
-- @include rings
local now, records = clock(), ''
local ring, place = ring_of(hourly, now)
number = math.max(1, math.min(number, ring.size))
local function part(from, to) return redis.call('GETRANGE', trends, bytes_of(ring, from), bytes_of(ring, to + 1) - 1) end
if number > place + 1 then records = part(place + 1 + ring.size - number, ring.size - 1) end
return {now, redis.call('HEXISTS', stats, 'trends'), records .. part(math.max(0, place + 1 - number), place)}
