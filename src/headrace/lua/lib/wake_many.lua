-- Parked entries do not wake a reader that is blocked on the stream; a token on the wake stream does.
local function wake_many(stream, jobs)
  for _ = 1, math.min(jobs, 8) do redis.call('XADD', stream, 'MAXLEN', 16, '*', 'w', '1') end
end
