-- report: keep the facts of a worker, for a day, and answer the requests of operators.
-- KEYS   stats (hash)
-- ARGV   worker, quiet flag, text
-- REPLY  {request, concurrency}: '' · 'quiet' it leases no more jobs for now · 'resume' it leases jobs again · 'stop' it
--        stops; concurrency: of `set_concurrency`, or 0
-- COST   5 us, and at times 1 us per worker that has left
-- quiet: whether it leases none. It stays so until it is told to resume: after its request was lost with the facts, or it
-- came back under a new name, the request is noted again. text: JSON, see `headrace._model.state.WorkerFacts`. A field of `facts` is a worker, or '?' and a worker that is asked
-- for something. A full server keeps nothing, and answers all the same.
local concurrency = tonumber(redis.call('HGET', stats, 'concurrency') or 0)
local crowded = redis.call('HLEN', facts) > 3 * redis.call('ZCARD', workers) + 20
redis.pcall('HSET', facts, worker, string.format('%.0f ', clock()) .. text)
redis.call('PEXPIRE', facts, 86400000)
if crowded then
  for _, name in ipairs(redis.call('HKEYS', facts)) do
    if not redis.call('ZSCORE', workers, (string.gsub(name, '^%?', ''))) then redis.call('HDEL', facts, name) end
  end
end
local request = redis.call('HGET', facts, '?' .. worker)
if quiet and not request then
  request = 'quiet'
  redis.pcall('HSET', facts, '?' .. worker, request)
elseif request == 'resume' and not quiet then
  redis.call('HDEL', facts, '?' .. worker)
  request = nil
end
return {request or '', concurrency}
