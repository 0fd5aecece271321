-- seal: seal a queue in this shard: it takes no more new jobs, for ever. Return the settings for its successors.
-- KEYS   stats (hash)
-- ARGV   version int
-- REPLY  {paused, name, value, ...}: 1 if the queue is paused here, and fields of the stats
-- COST   4 us
-- version: the version of the table that seals the shard; `enqueue` answers it before any write. 0: only return the
-- settings. A seal is final.
local kept = redis.call('HMGET', stats, 'shards', 'paused')
if version > tonumber(kept[1] or 0) then
  redis.call('HDEL', stats, '') -- a full server permits it, and then all later writes
  redis.call('HSET', stats, 'shards', version)
end
local reply = {kept[2] and 1 or 0}
local names = {'concurrency', 'declared', 'declaration', 'history', 'levels', 'trends'}
for i, value in ipairs(redis.call('HMGET', stats, unpack(names))) do
  if value then reply[#reply + 1], reply[#reply + 2] = names[i], value end
end
return reply
