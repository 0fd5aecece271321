-- Ids that are taken without a job: `taken`, a sorted set by the ms until which each is taken. The key goes with its
-- last id; its TTL also removes ids that would stay longer because the clock went back.
local function take_until(taken, id, last, now)
  local gone = redis.call('ZRANGEBYSCORE', taken, '-inf', string.format('%.0f', now), 'LIMIT', 0, 3)
  if #gone > 0 then redis.call('ZREM', taken, unpack(gone)) end
  redis.call('ZADD', taken, 'GT', string.format('%.0f', last), id)
  local latest = redis.call('ZRANGE', taken, -1, -1, 'WITHSCORES')[2]
  redis.call('PEXPIRE', taken, string.format('%.0f', math.max(1, tonumber(latest) - now)))
end
