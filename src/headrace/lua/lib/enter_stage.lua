-- Reserve *n* nonces and answer the first. No other job of this run ever has one of them, and no remains of an earlier
-- run with this id have one.
local function reserve_nonces(run, now, n)
  local last = redis.call('HINCRBY', run, 'nonce', n)
  if last == n then -- there were none
    last = now * 512 % (NONCES / 2) + LEAST_NONCE + n
    redis.call('HSET', run, 'nonce', string.format('%.0f', last))
  end
  return last - n + 1
end
-- The fields that a run keeps of a job for its next stage, for HSET. The payload is kept apart, as the string that
-- came: Lua hashes a few bytes of a string, so a thousand long and similar strings would take it milliseconds.
local function kept_as(id, fields) return 'data:' .. id, fields[2], 'job:' .. id, cmsgpack.pack({unpack(fields, 5)}) end
-- A flow's job enters a stage, now or after its delay ('' none, '+ms', '@ms'). It takes its id there from any other
-- job, also from one that was cancelled.
local function enter_stage(q, id, now, delay, fields, nonce)
  -- A job of the same id that belongs to no flow keeps its place, but loses the id.
  if redis.call('HGET', q.ids, id) == 'delayed' then promote_these(q, {id}) end
  local due, mine = due_at(delay, now), {unpack(fields)}
  mine[#mine + 1], mine[#mine + 2] = 'headrace-nonce', string.format('%.0f', nonce)
  if due > 0 then
    mine[#mine + 1], mine[#mine + 2] = 'enq', string.format('%.0f', now)
    redis.call('HSET', q.bodies, id, cmsgpack.pack(mine))
    redis.call('ZADD', q.delayed, string.format('%.0f', due), id)
    redis.call('HSET', q.ids, id, 'delayed')
    if redis.call('ZRANK', q.delayed, id) == 0 then wake_one(q.wake) end
  else
    redis.call('HSET', q.ids, id, append(q, mine))
  end
  redis.call('ZREM', q.cancels, id)
  redis.call('HINCRBY', q.stats, 'enqueued', 1)
  note_event(q, 'added', id)
  set_mark(q.flows, id, NOTHING, nonce)
end
-- Many jobs at once, at most 1,000: {delay, fields, nonce} each, with their ids in the fields. Keys that all jobs
-- change are changed once.
local function enter_stage_together(q, now, jobs)
  if #jobs == 0 then return end
  local ids, entries, marks, largest = {}, {}, {}, 0
  for i, job in ipairs(jobs) do ids[i] = job.fields[4] end
  local taken = redis.call('HMGET', q.ids, unpack(ids))
  for i, job in ipairs(jobs) do
    if taken[i] == 'delayed' or job.delay ~= '' then
      enter_stage(q, ids[i], now, job.delay, job.fields, tonumber(job.nonce))
    else
      local fields, last = job.fields, #job.fields
      fields[last + 1], fields[last + 2] = 'headrace-nonce', job.nonce
      entries[#entries + 1], entries[#entries + 2] = ids[i], redis.call('XADD', q.jobs, '*', unpack(fields))
      marks[#marks + 1], marks[#marks + 2] = job.nonce, ids[i] -- NOTHING has happened to it
      largest = math.max(largest, size_of(fields))
      note_event(q, 'added', ids[i])
    end
  end
  if #entries == 0 then return end
  redis.call('ZREM', q.cancels, unpack(ids))
  redis.call('HINCRBY', q.stats, 'enqueued', #entries / 2)
  redis.call('HINCRBY', q.stats, 'added', #entries / 2)
  redis.call('HSET', q.ids, unpack(entries))
  redis.call('ZADD', q.flows, unpack(marks))
  keep_max_job_size(q.stats, largest)
end
