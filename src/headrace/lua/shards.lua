-- shards: write the table of a group's shards, if the caller knows the present version, and return the table.
-- KEYS   shards (hash)
-- ARGV   queue, known, queues, rows...
-- REPLY  the fields of the table and their values, one after the other; none, if there is no table and no rows were given
-- COST   5 us; 0.5 us a shard, and a queue of the group
-- queue: the caller's queue. The table stores it as the field 'queue:<name>', so that a change of the table knows all
-- queues. known: the version to replace, '' for a missing table. queues: how many stored queues the caller knows, or ''
-- for any number. Rows are fields and values: 'version'; for each shard its number, with the salt of its tag, the first
-- and the last CRC-32 of its keys, and 'open', 'sealing', 'opening' or 'draining'; after a change of the table also
-- 'numbers', the numbers of shards that it had, 'next', the number of the next shard, and 'past:<queue>', the totals of
-- removed shards.
if (#ARGV - rows) % 2 == 0 then error('ARGUMENT rows: each has a field and a value', 0) end
local there, names, named = {}, 0, queue == ''
for _, field in ipairs(redis.call('HKEYS', shards)) do
  if string.sub(field, 1, 6) == 'queue:' then
    names, named = names + 1, named or string.sub(field, 7) == queue
  else
    there[#there + 1] = field
  end
end
local version = redis.call('HGET', shards, 'version') or ''
if #ARGV >= rows and version == known and (queues == '' or tonumber(queues) == names) then
  if #there > 0 then redis.call('HDEL', shards, unpack(there)) end -- a full server permits it, and then all later writes
  redis.call('HSET', shards, unpack(ARGV, rows))
end
if not named and names < 1000 and redis.call('EXISTS', shards) == 1 then
  redis.call('HDEL', shards, '')
  redis.call('HSET', shards, 'queue:' .. queue, 1)
end
local fields, reply = redis.call('HKEYS', shards), {}
for i = 1, #fields, 1000 do
  local last = math.min(#fields, i + 999)
  for j, row in ipairs(redis.call('HMGET', shards, unpack(fields, i, last))) do
    reply[2 * (i + j) - 3], reply[2 * (i + j) - 2] = fields[i + j - 1], row
  end
end
return reply
