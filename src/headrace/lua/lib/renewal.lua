-- Renew the leases of these entries, which *worker* holds, from now on. *duration*: ms, '' for the worker's own. *ttl*:
-- ms for which a worker without a heartbeat counts as alive.
local function renew_leases(q, worker, held, duration, ttl, now)
  hand_to(q.jobs, worker, held)
  if duration ~= '' then
    for i = 1, #held do redis.call('ZADD', q.leases, string.format('%.0f', now + tonumber(duration)), held[i]) end
  elseif redis.call('EXISTS', q.leases) == 1 then
    redis.call('ZREM', q.leases, unpack(held))
  end
  local deadline = ttl > 0 and tonumber(redis.call('ZSCORE', q.workers, worker) or 0) or 0
  if deadline > 0 and deadline < now + ttl then redis.call('ZADD', q.workers, string.format('%.0f', now + ttl), worker) end
end
