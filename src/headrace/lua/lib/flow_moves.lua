-- Entries of flows' jobs into stages, and their ends: see flow_run. `event` is a function of the script.
local end_job
local event
-- A job of which a part is lost is a dead letter of the stage that it enters.
local function lose(run, id, job)
  local q = queues[job.stage]
  local own, headers, why = jobs_kept.remains(run, id, job)
  redis.call('ZREM', q.cancels, id)
  redis.call('HINCRBY', q.stats, 'enqueued', 1)
  local fields = q.history and compose(own, headers)
  table.insert(dead_ids, {job.stage, unpack(keep_dead(q, dead_limit, why, '', 0, own, headers))})
  histories.note(q, 'dead', id, {reason = why, fields = fields})
  causes.keep(run, id, why)
end
-- A job enters a stage. *body*: the record of its wait for children, if it has waited.
local function enter(run, id, job, stage, body)
  local fields = jobs_kept.job(run, id)
  if not fields then
    fields = jobs_kept.waited(id, body)
    if fields then jobs_kept.keep(run, id, fields) end
  end
  if not fields and not body and jobs_kept.none(run, id, job) then
    set_place(run, id, job, 'done')
    return end_job(run, id, job)
  end
  local left = job.stage
  job.stage = stage
  job.nonce = reserve_nonces(run, now, 1)
  if not fields then
    lose(run, id, job)
    set_place(run, id, job, 'dead', left)
    return end_job(run, id, job)
  end
  enter_stage(queues[stage], id, now, '', fields, job.nonce)
  set_place(run, id, job, 'active', left)
  local waited = redis.call('HDEL', run, 'join:' .. id) == 1
  if waited then redis.call('HINCRBY', run, 'fan:' .. id, 1) end -- its next fan-out is another one
end
-- The first job of a run has ended. *live*: how many other jobs go on, nil for a run from before they were counted.
local function end_run(run, how, live)
  local state = ({done = 'completed', dead = 'failed', cancelled = 'cancelled'})[how]
  for _, member in ipairs(members_of(run)) do redis.call('ZREM', index, member) end
  redis.call('HSET', run, 'state', state, 'ended', string.format('%.0f', now))
  if not live then redis.call('PEXPIRE', run, result_ttl) end
end
-- A parent whose children have failed is a dead letter of its stage.
local function bury_parent(run, parent, at, body, children, failed)
  local q = queues[at.stage]
  local own, headers, lost
  local fields = jobs_kept.headers(body)
  if fields then
    own, headers = parse(fields)
  else
    own, headers, lost = jobs_kept.remains(run, parent, at)
  end
  own.attempt = own.attempt or '1'
  own.id = parent
  local reason = failed .. ' of ' .. #children .. ' children failed' .. causes.of_children(run, children)
  if lost then reason = lost .. '; ' .. reason end
  fields = q.history and histories.add_children(q, run, compose(own, headers), children)
  local releases = math.max(0, own.attempt - 1)
  table.insert(dead_ids, {at.stage, unpack(keep_dead(q, dead_limit, reason, '', releases, own, headers))})
  histories.note(q, 'dead', parent, {attempt = own.attempt, reason = reason, fields = fields})
  causes.keep(run, parent, reason)
  set_place(run, parent, at, 'dead')
end
-- Handle the marks of children that were redriven, which no call has done yet: they have not ended.
local function hear_redriven(run, children)
  for _, child in ipairs(children) do
    local job = where(run, child)
    if job.how == 'dead' and outside(queues[job.stage], child) == REDRIVEN then event(run, child, job.stage) end
  end
end
-- *id* has ended: done, dead or cancelled. After its last child a parent goes on, dies, or ends.
function end_job(run, id, job)
  while true do
    local how = job.how
    local live = count_live(run, -1)
    if how ~= 'dead' then redis.call('HDEL', run, 'data:' .. id, 'job:' .. id) end
    jobs_kept.read[run .. ' ' .. id] = nil
    if not string.match(id, ABOVE) then end_run(run, how, live) end
    if live == 0 then redis.call('PEXPIRE', run, result_ttl) end -- the last job of the run

    local parent, at = parents.waiting(run, id, job)
    if not parent then return end
    if how ~= 'done' then
      local failed = redis.call('HINCRBY', run, 'failed:' .. parent, 1)
      if failed == 1 and get(run, 'policy', parent) == 'cancel' then parents.cancel_children(run, parent) end
    end
    if redis.call('HINCRBY', run, 'pending:' .. parent, -1) > 0 then return end
    local q = queues[at.stage]
    local what, nonce = outside(q, parent)
    if nonce and what ~= NOTHING then return end -- it is cancelled, or will be
    local children = tonumber(get(run, 'failed', parent)) > 0 and parents.children(run, parent) or {}
    hear_redriven(run, children)
    if tonumber(get(run, 'pending', parent)) > 0 then return end

    local join = get(run, 'join', parent)
    local failed = tonumber(get(run, 'failed', parent))
    local dies = failed > 0 and get(run, 'policy', parent) ~= 'continue'
    local asked = dies or q.history or join ~= '' and not jobs_kept.job(run, parent)
    local body = asked and redis.call('HGET', q.blocked, parent) or ''
    weigh(budget, {body})
    redis.call('HDEL', q.blocked, parent)
    redis.call('HDEL', q.ids, parent)
    redis.call('ZREM', q.flows, parent)
    if dies then
      bury_parent(run, parent, at, body, children, failed)
    else
      redis.call('HINCRBY', q.stats, 'completed', 1)
      histories.note(q, 'completed', parent, histories.of_parent(q, run, parent, body))
      if join ~= '' then return enter(run, parent, at, join, body) end
      set_place(run, parent, at, 'done')
    end
    id = parent
    job = at
  end
end
-- A job has done its stage, and goes to *target*, or ends.
local function go(run, id, job, target)
  if target ~= '' then return enter(run, id, job, target) end
  set_place(run, id, job, 'done')
  end_job(run, id, job)
end
-- A job was cancelled.
local function cancelled(run, id, job, why)
  local how = job.how
  if how == 'blocked' then parents.cancel_children(run, id) end
  causes.keep(run, id, why)
  set_place(run, id, job, 'cancelled')
  if how ~= 'dead' then end_job(run, id, job) end -- otherwise its end was counted before
end
-- A dead letter was redriven: its end counts no longer. While the job goes on, its run's state is kept.
local function revive(run, id, job)
  local first = not string.match(id, ABOVE)
  if not job.how then redis.call('HSET', run, 'live', 0) end
  if count_live(run, 1) or first then redis.call('PERSIST', run) end
  causes.keep(run, id, nil)
  set_place(run, id, job, 'active')
  if first then
    redis.call('HSET', run, 'state', 'running')
    redis.call('HDEL', run, 'ended')
    for _, member in ipairs(members_of(run)) do redis.call('ZADD', index, 0, member) end
    return
  end
  local parent = parents.waiting(run, id, job)
  if parent then
    redis.call('HINCRBY', run, 'failed:' .. parent, -1)
    redis.call('HINCRBY', run, 'pending:' .. parent, 1)
  end
end
