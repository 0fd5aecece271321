-- drained: return for how long a queue has been empty in this sealed shard, and its totals.
-- KEYS   jobs (stream), stats (hash), taken (zset)
-- ARGV   (none)
-- REPLY  {ms, entries, enqueued, completed, cancelled, deleted, dead_trimmed}: ms since it was first found empty; -1:
--        it is not empty, an id is taken without a job, or it is not sealed · entries: the number of jobs in line
--        (waiting, parked, leased, or held back)
-- COST   15 us
level_streams(stats, levels)
local counts = count_states({
  -- @queue without held
  levels = levels,
})
local left = redis.call('HLEN', schedules) + redis.call('ZCARD', ended) + redis.call('HLEN', outbox)
left = left + redis.call('ZCARD', closing) + redis.call('EXISTS', taken)
for i = 1, 6 do left = left + counts[i] end
local kept, now, since = redis.call('HMGET', stats, 'shards', 'drained'), clock(), -1
left = left + redis.call('ZCOUNT', handed, string.format('%.0f', now), '+inf') -- jobs that may be sent here again
left = left + redis.call('ZCOUNT', reported, string.format('%.0f', now), '+inf') -- ends that parents are to learn
redis.call('HDEL', stats, '') -- a full server permits it, and then all later writes
if left > 0 or not kept[1] then
  redis.call('HDEL', stats, 'drained')
else
  since = math.max(0, now - tonumber(kept[2] or now))
  if not kept[2] or since == 0 then redis.call('HSET', stats, 'drained', string.format('%.0f', now)) end
end
local entries = redis.call('XLEN', jobs)
for _, stream in ipairs(levels) do entries = entries + redis.call('XLEN', stream) end
return {since, entries, counts[7], counts[8], counts[9], counts[10], counts[11]}
