-- The largest job that came in, if that is more than 4 KiB, until the sweep finds the streams empty: `lease` learns
-- from it how many jobs it may read at a time.
local function keep_largest(stats, bytes)
  if bytes > 4096 and bytes > tonumber(redis.call('HGET', stats, 'largest') or 0) then
    redis.call('HSET', stats, 'largest', bytes)
  end
end
