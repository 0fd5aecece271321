-- rest: register a worker for a long time in an idle queue: it needs neither to beat nor to sweep the queue meanwhile.
-- KEYS   jobs (stream), stats (hash)
-- ARGV   worker, duration int
-- REPLY  2 the worker is idle, like all others · 1 it is idle, but others are not, or are more than 100: it must sweep
--        the queue as usual · 0 the queue has work, or the server is full: it must beat · -1 it was declared dead, or
--        was never registered
-- COST   10 us + 1 us per worker
-- duration: ms until the worker counts as dead. The deadline of an idle worker ends in half a ms, which marks it for
-- others. An idle worker holds no job, and sends a `beat` before its next `lease`, which notifies the others on
-- `control`.
local rows = redis.call('ZRANGE', workers, 0, 100, 'WITHSCORES')
local pending = redis.pcall('XPENDING', jobs, 'workers', '-', '+', 1)
local there = redis.call('EXISTS', leases, limited, delayed, ticks, outbox, held) > 0
local kept = redis.call('HMGET', stats, 'listening', 'largest', 'rewind', 'levels', 'trends', 'paused')
local now, mine, verdict = clock(), 0, #rows > 200 and 1 or 2
for i = 1, #rows, 2 do
  local deadline = tonumber(rows[i + 1])
  if rows[i] == worker then
    mine = deadline
  elseif deadline < now or deadline % 1 == 0 then
    verdict = 1
  end
end
if mine == 0 and #rows > 200 then mine = tonumber(redis.call('ZSCORE', workers, worker) or 0) end
if mine == 0 then return -1 end
if pending.err or pending[1] or there then return 0 end
for i = 1, 6 do
  if kept[i] then return 0 end
end
local deadline = string.format('%.0f.5', now + duration)
return type(redis.pcall('ZADD', workers, deadline, worker)) == 'number' and verdict or 0
