-- report: keep the facts of a worker, for a day, and answer the request of an operator.
-- KEYS   workers (zset), facts (hash)
-- ARGV   worker, text
-- REPLY  '' · 'quiet' it leases no more jobs for now · 'stop' it stops
-- COST   5 us, and at times 1 us per worker that has left
-- text: JSON, see `headrace._model.state.WorkerFacts`. A field of `facts` is a worker, or '?' and a worker that is asked
-- for something. A full server keeps nothing, and answers all the same.
-- @include clock
local crowded = redis.call('HLEN', facts) > 3 * redis.call('ZCARD', workers) + 20
redis.pcall('HSET', facts, worker, string.format('%.0f ', clock()) .. text)
redis.call('PEXPIRE', facts, 86400000)
if crowded then
  for _, name in ipairs(redis.call('HKEYS', facts)) do
    if not redis.call('ZSCORE', workers, (string.gsub(name, '^%?', ''))) then redis.call('HDEL', facts, name) end
  end
end
return redis.call('HGET', facts, '?' .. worker) or ''
