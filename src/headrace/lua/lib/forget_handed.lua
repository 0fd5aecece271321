-- Forget the nonces of transferred jobs that have expired, at most 2,000 at a time. `handed` is a sorted set of nonces
-- by the ms until which to keep each. The key disappears with its last nonce.
local function forget_handed(handed, now)
  local gone = redis.call('ZRANGEBYSCORE', handed, '-inf', string.format('%.0f', now), 'LIMIT', 0, 2000)
  if #gone > 0 then redis.call('ZREM', handed, unpack(gone)) end
  local latest = redis.call('ZRANGE', handed, -1, -1, 'WITHSCORES')[2]
  if latest then redis.call('PEXPIRE', handed, string.format('%.0f', math.max(1, tonumber(latest) - now))) end
end
