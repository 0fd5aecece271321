-- The size of the largest job that came in, if it is more than 4 KiB, until a sweep finds the streams empty: `lease`
-- reads fewer jobs at a time then.
local function keep_max_job_size(stats, bytes)
  if bytes > 4096 and bytes > tonumber(redis.call('HGET', stats, 'largest') or 0) then
    redis.call('HSET', stats, 'largest', bytes)
  end
end
