-- A job that no handler has started: waiting, parked without an attempt spent, delayed, or held back by a rate limit;
-- and its run has no records but signals.
-- Read the job with the id *id*, whose place is *entry* ('delayed', or its entry). Answers a table: own and headers,
-- due (0: now), spent, releases; nil if the job has started, or the id belongs to no job; false if the budget is spent.
local function unstarted_job(q, id, entry, budget)
  if entry == 'blocked' or redis.call('ZSCORE', q.flows, id) then return nil end
  local job = {id = id, entry = entry, due = 0, spent = 0}
  if entry == 'delayed' then
    local body = value_of(budget, q.bodies, id)
    if body == false then return false end
    if not body then return nil end
    job.own, job.headers = parse(stored(body))
    job.due = tonumber(redis.call('ZSCORE', q.delayed, id) or 0)
    job.releases = redis.call('HGET', q.released, id)
  else
    local stream, number, level = entry_of(q, entry)
    local row = stream and not level and redis.pcall('XPENDING', q.jobs, 'workers', entry, entry, 1)[1] -- none without a group
    if not stream or row and not is_reserved(row[2]) then return nil end
    local body = entry_at(budget, stream, number)
    if body == false then return false end
    if not body then return nil end
    job.own, job.headers = parse(level and prioritised(body[2], level) or body[2])
    tried.add(q.turns, entry, job.own)
    job.spent = row and not is_undelivered(row[2]) and row[4] or 0
    job.releases = redis.call('HGET', q.released, entry)
  end
  if job.own.id ~= id then return nil end
  job.spent = job.spent + tonumber(job.own.attempt or 0)
  if job.spent > (tonumber(job.releases or 0) or 0) then return nil end
  job.first = tonumber(job.own.enq or string.match(entry, '^%d+') or 0)
  local run = runs.read(q.steps, id)
  for i = 1, run and (run.enq == '' or tonumber(run.enq) == job.first) and run.number or 0 do
    if runs.record(q.steps, id, i)[2] ~= 'signal' then return nil end
  end
  return job
end
-- Move the job, or replace it by another one: *due* ms of the clock, 0 for the back of its level. It keeps its id, the
-- time of its first enqueue, and its token, which goes on growing. Answers whether it is the first due now.
local function requeue_job(q, job, own, headers, due)
  if job.entry == 'delayed' then depart_delayed(q, {job.id}) else depart(q, {job.entry}, {}) end
  own.id, own.enq = job.id, string.format('%.0f', job.first)
  own.attempt = job.spent > 0 and string.format('%.0f', job.spent) or nil
  local name, first = job.id, false
  if due > 0 then
    redis.call('HSET', q.bodies, job.id, cmsgpack.pack(compose(own, headers)))
    redis.call('ZADD', q.delayed, string.format('%.0f', due), job.id)
    redis.call('HSET', q.ids, job.id, 'delayed')
    first = redis.call('ZRANK', q.delayed, job.id) == 0
  else
    name = append(q, compose(own, headers))
    redis.call('HSET', q.ids, job.id, name)
  end
  if job.releases then redis.call('HSET', q.released, name, job.releases) end
  return first
end
