-- The state of a flow's jobs, in the hash of their run. The fragments flow_* are parts of the script `flow_advance`. They
-- read these of its locals: `queues`, by stage; `names`, of the stages; `now`; `budget`; and `dead_ids`.
local ABOVE = '^(.*)/(%d+)/[^/]*$' -- a child's id: its parent's, which of the parent's fan-outs, its name
local function get(run, what, id) return redis.call('HGET', run, what .. ':' .. id) end
-- The place of a job of a run: `how` (active, blocked, done, dead or cancelled; nil: unknown), its stage (for an ended
-- job the last one), the nonce of its entry into the stage, and the nonce of the fan-out that created it.
local function where(run, id)
  local how, stage, nonce, of = string.match(get(run, 'at', id) or '', '^(%a+) (%S+) ?(%d*) ?(%d*)$')
  return {how = how, stage = stage, nonce = tonumber(nonce ~= '' and nonce or 0), of = of or ''}
end
local function goes_on(job) return job.how == 'active' or job.how == 'blocked' end
-- Write the place of a job. *left*: the stage that it leaves. A job that ends leaves its own.
local function set_place(run, id, job, how, left)
  job.how = how
  left = left or not goes_on(job) and job.stage
  local state = string.format('%s %s %.0f %s', how, job.stage, job.nonce, job.of)
  if left then
    redis.call('HSET', run, 'at:' .. id, state, 'left:' .. left .. ':' .. id, string.format('%.0f', now))
  else
    redis.call('HSET', run, 'at:' .. id, state)
  end
end
-- Count the jobs of the run that go on; nil for a run from before they were counted.
local function count_live(run, n)
  return redis.call('HEXISTS', run, 'live') == 1 and redis.call('HINCRBY', run, 'live', n) or nil
end
-- The mark of a job that no call has handled yet, and the nonce that it had then; NOTHING and nil if its queue does not
-- hold it.
local function outside(q, id)
  local score = q and redis.call('ZSCORE', q.flows, id)
  if not score then return NOTHING, nil end
  return marked(score)
end
-- The members of the flow's index that stand for this run.
local function members_of(run) return strings_of(redis.call('HGET', run, 'index')) or {} end
