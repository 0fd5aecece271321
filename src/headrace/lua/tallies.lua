-- tallies: read what the workers of a queue have counted, by minutes, by ten minutes, or by minutes and values.
-- KEYS   (none)
-- ARGV   ring, after int
-- REPLY  {now, record...}: now ms · the records at the places of the numbers above `after`; ignore a record with another
--        number
-- COST   10 us + 25 us per 100
-- ring: 'm', 't' or 'v'; lib/tally_records.lua describes them, and a record.
if not TALLIES[ring] then error('ARGUMENT ' .. ring .. ': no such ring', 0) end
local now = clock()
local newest = tally_number(ring, now)
local fields, reply = {}, {now}
for number = math.max(after, newest - TALLIES[ring].size) + 1, newest do fields[#fields + 1] = tally_field(ring, number) end
local found = #fields > 0 and redis.call('HMGET', tallies, unpack(fields)) or {}
for i = 1, #fields do
  if found[i] then reply[#reply + 1] = found[i] end
end
return reply
