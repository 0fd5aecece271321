-- shards: write the table of a group's shards, unless there is one, and tell it.
-- KEYS   shards (hash)
-- ARGV   rows...
-- REPLY  the fields of the table and their values, one after the other; none, if there is no table and no rows were given
-- COST   5 us; 0.5 us a shard
-- Rows are fields and values: 'version', and for each shard its number: the salt of its tag, the first and the last
-- CRC-32 of its keys, and 'open'.
if #ARGV >= rows and redis.call('EXISTS', shards) == 0 then
  redis.call('HSET', shards, unpack(ARGV, rows))
end
local fields = redis.call('HKEYS', shards)
local reply = {}
for i, row in ipairs(#fields > 0 and redis.call('HMGET', shards, unpack(fields)) or {}) do
  reply[2 * i - 1], reply[2 * i] = fields[i], row
end
return reply
