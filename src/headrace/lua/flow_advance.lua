-- flow_advance: move jobs of flows on, however their stages ended. Of several calls for one job, one wins.
-- KEYS   lane (string), index (zset), others...
-- ARGV   call, worker, result_ttl, dead_limit int, stages count, items...
-- REPLY  one per item, as far as 1 MiB of their jobs goes: 1 this call did it · 0 another call already had, it is not
--        this worker's any more (fenced), the flow would have to go to a stage that is not among these, or the key of
--        its run is foreign: a job that would move is a dead letter now, with a reason that names the key. Last, if there
--        are any, the jobs that are dead letters now: a list of {stage, id, attempts, reason, kind}
-- COST   10 us + 3 us per stage + 20 us per item + 6 us per child
-- Keys: jobs, wake, ids, leases, released, delayed, bodies, blocked, dead, stats, flows, events, control, limited,
-- asleep, steps, held, slots, settled, stopped of each stage's queue, then flow:<id> for each item. worker: '' for first completer wins, else the fence. Items:
-- `stages` times {name, default next stage or ''}, then any of {"move", id, stage, entry, delivery count, kept (1 there
-- is a result, 0 none), result, next stage ('' ends it), failed, number of children, children...}: the job leaves its
-- stage, at once when `failed` is '', else when its children have ended ("fail", "continue" or "cancel": the reaction
-- to a failed child), each child {name, stage, delay, number of fields, fields... without its id} · {"event", id,
-- stage}: a row of flow_events · {"forget", id, stage}: a member that can't be a job of a run · {"cancel", id}. At most
-- 1,000 children.
-- @include clock
-- @include enter_stage
-- @include fields
-- @include held
-- @include held_by
-- @include keep_dead
-- @include marks
-- @include note_event
-- @include number
-- @include page
-- @include record
-- @include remove_by_id
-- @include require_types
-- @include retire
-- @include runs
-- @include stored
-- @include strings_of
-- @include tell_holders
whole(result_ttl, 1)
local known = recorded()
if known then return known end

-- 1. The stages, and the runs.
local PARTS = {'jobs', 'wake', 'ids', 'leases', 'released', 'delayed', 'bodies', 'blocked', 'dead', 'stats', 'flows', 'events', 'control',
               'limited', 'asleep', 'steps', 'held', 'slots', 'settled', 'stopped'}
local ABOVE = '^(.*)/(%d+)/[^/]*$' -- a child's id: its parent's, which of the parent's fan-outs, its name
local at = items
local function argument()
  at = at + 1
  return ARGV[at - 1]
end
local names, queues, states, foreign, now, budget, buried = {}, {}, {}, {}, clock(), new_budget(), {}
require_sorted_sets(index)
for i = 1, stages do
  names[i] = argument()
  local q = {next = argument(), levels = {n = 0}}
  for j, part in ipairs(PARTS) do q[part] = others[#PARTS * (i - 1) + j] end
  require_streams(q.jobs, q.wake, q.dead)
  require_hashes(q.ids, q.released, q.bodies, q.blocked, q.stats, q.steps)
  require_sorted_sets(q.leases, q.delayed, q.flows, q.limited, q.asleep)
  holds.check(q)
  queues[names[i]] = q
end
for i = #PARTS * stages + 1, #others do
  local length = redis.pcall('HLEN', others[i])
  states[#states + 1], foreign[others[i]] = others[i], type(length) == 'table' and length.err or nil
end

-- 2. The state of jobs in their runs.
local function get(run, what, id) return redis.call('HGET', run, what .. ':' .. id) end
-- The place of a job of a run: `how` (active, blocked, done, dead or cancelled; nil: unknown), its stage (for an ended
-- job the last one), the nonce of its entry into the stage, and the nonce of the fan-out that created it.
local function where(run, id)
  local how, stage, nonce, of = string.match(get(run, 'at', id) or '', '^(%a+) (%S+) ?(%d*) ?(%d*)$')
  return {how = how, stage = stage, nonce = tonumber(nonce ~= '' and nonce or 0), of = of or ''}
end
local function goes_on(job) return job.how == 'active' or job.how == 'blocked' end
-- *left*: the stage that it leaves; one that ends leaves its own.
local function set(run, id, job, how, left)
  job.how = how
  left = left or not goes_on(job) and job.stage
  local state = string.format('%s %s %.0f %s', how, job.stage, job.nonce, job.of)
  if not left then return redis.call('HSET', run, 'at:' .. id, state) end
  redis.call('HSET', run, 'at:' .. id, state, 'left:' .. left .. ':' .. id, string.format('%.0f', now))
end
-- Count the jobs of the run that go on; nil for a run from before they were counted.
local function alive(run, n)
  return redis.call('HEXISTS', run, 'live') == 1 and redis.call('HINCRBY', run, 'live', n) or nil
end
-- The parent that waits for *id*, and its place. The name is not enough: earlier fan-outs may have had a child of it.
local function waiting(run, id, job)
  local parent, fan = string.match(id, ABOVE)
  if not parent then return nil end
  local at = where(run, parent)
  if at.how ~= 'blocked' or (get(run, 'fan', parent) or '1') ~= fan then return nil end
  if (get(run, 'fanout', parent) or '') == job.of then return parent, at end
end
-- Whether each stage that the end of *id* may lead to is among ours: otherwise a worker with a newer declaration must
-- do it.
local function able(run, id)
  while true do
    local parent, at = waiting(run, id, where(run, id))
    if not parent then return true end
    local join = get(run, 'join', parent)
    if not queues[at.stage] or join ~= '' and not queues[join] then return false end
    id = parent
  end
end
-- The mark of a job that no call has handled yet, and the nonce that it had then; NOTHING and nil if its queue does not
-- hold it.
local function outside(q, id)
  local score = q and redis.call('ZSCORE', q.flows, id)
  if not score then return NOTHING, nil end
  return marked(score)
end

-- 3. Jobs enter stages, and end.
-- The fields of a job, kept for its next stage, read once; nil if they were removed, or overwritten, by hand.
local kept_jobs = {}
local function kept_job(run, id)
  local name = run .. ' ' .. id
  if kept_jobs[name] == nil then
    local data, packed = unpack(redis.call('HMGET', run, 'data:' .. id, 'job:' .. id))
    local others = data and strings_of(packed)
    if others then weigh(budget, {data, packed}) end
    kept_jobs[name] = others and {'data', data, 'id', id, unpack(others)} or false
  end
  return kept_jobs[name] or nil
end
local function keep_job(run, id, fields)
  kept_jobs[run .. ' ' .. id] = fields
  redis.call('HSET', run, kept_as(id, fields))
end
local ended
local function enter(run, id, job, stage)
  local fields = kept_job(run, id)
  if not fields then -- a child whose stage was a last one ends there; overwritten fields are lost
    set(run, id, job, redis.call('HEXISTS', run, 'job:' .. id) == 1 and 'dead' or 'done')
    return ended(run, id, job)
  end
  local left = job.stage
  job.stage, job.nonce = stage, nonces(run, now, 1)
  enter_stage(queues[stage], id, now, '', fields, job.nonce)
  set(run, id, job, 'active', left)
  if redis.call('HDEL', run, 'join:' .. id) == 1 then redis.call('HINCRBY', run, 'fan:' .. id, 1) end -- its next fan-out is another one
end
local function children_of(run, id) return strings_of(get(run, 'children', id)) or {} end
-- Mark the children of *id* for cancelling: sweeps of events cancel them, a page at a time.
local function cancel_children(run, id)
  local marks, children = {}, children_of(run, id)
  for from = 1, #children, 1000 do
    local fields = {}
    for i = from, math.min(#children, from + 999) do fields[#fields + 1] = 'at:' .. children[i] end
    for i, known in ipairs(redis.call('HMGET', run, unpack(fields))) do
      local how, stage, nonce = string.match(known or '', '^(%a+) (%S+) ?(%d*)')
      local child, q = children[from + i - 1], (how == 'active' or how == 'blocked') and queues[stage]
      local what, present = outside(q, child)
      if present and what == NOTHING and same(tonumber(nonce ~= '' and nonce or 0), present) then
        marks[stage] = marks[stage] or {}
        table.insert(marks[stage], string.format('%.0f', CANCELLING * NONCES + present))
        table.insert(marks[stage], child)
      end
    end
  end
  for i = 1, stages do
    if marks[names[i]] then redis.call('ZADD', queues[names[i]].flows, unpack(marks[names[i]])) end
  end
end
local function members(run) return strings_of(redis.call('HGET', run, 'index')) or {} end
local event
-- *id* has ended: done, dead or cancelled. After its last child a parent goes on, dies, or ends.
function ended(run, id, job)
  while true do
    local how, live = job.how, alive(run, -1)
    if how ~= 'dead' then redis.call('HDEL', run, 'data:' .. id, 'job:' .. id) end
    kept_jobs[run .. ' ' .. id] = nil
    if not string.match(id, ABOVE) then
      local state = ({done = 'completed', dead = 'failed', cancelled = 'cancelled'})[how]
      for _, member in ipairs(members(run)) do redis.call('ZREM', index, member) end
      redis.call('HSET', run, 'state', state, 'ended', string.format('%.0f', now))
      if not live then redis.call('PEXPIRE', run, result_ttl) end
    end
    if live == 0 then redis.call('PEXPIRE', run, result_ttl) end -- the last job of the run
    local parent, at = waiting(run, id, job)
    if not parent then return end
    if how ~= 'done' then
      local failed = redis.call('HINCRBY', run, 'failed:' .. parent, 1)
      if failed == 1 and get(run, 'policy', parent) == 'cancel' then cancel_children(run, parent) end
    end
    if redis.call('HINCRBY', run, 'pending:' .. parent, -1) > 0 then return end
    local q, join = queues[at.stage], get(run, 'join', parent)
    local what, nonce = outside(q, parent)
    if nonce and what ~= NOTHING then return end -- it is cancelled, or will be
    -- A redriven child, which no call has handled yet, has not ended.
    local children = tonumber(get(run, 'failed', parent)) > 0 and children_of(run, parent) or {}
    for _, child in ipairs(children) do
      local dead = where(run, child)
      if dead.how == 'dead' and outside(queues[dead.stage], child) == REDRIVEN then event(run, child, dead.stage) end
    end
    if tonumber(get(run, 'pending', parent)) > 0 then return end
    local failed = tonumber(get(run, 'failed', parent))
    local dies = failed > 0 and get(run, 'policy', parent) ~= 'continue'
    local body = dies and redis.call('HGET', q.blocked, parent) or ''
    weigh(budget, {body})
    redis.call('HDEL', q.blocked, parent)
    redis.call('HDEL', q.ids, parent)
    redis.call('ZREM', q.flows, parent)
    if dies then
      local own, headers = parse(stored(body))
      local reason = failed .. ' of ' .. #children .. ' children failed, the last ' .. id
      own.attempt = own.attempt or '1'
      own.id = parent
      buried[#buried + 1] = {at.stage, unpack(keep_dead(q.dead, q.stats, q.steps, dead_limit, reason, '', own.attempt - 1, own, headers))}
      note_event(q, 'dead', parent)
      set(run, parent, at, 'dead')
    else
      redis.call('HINCRBY', q.stats, 'completed', 1)
      note_event(q, 'completed', parent)
      if join ~= '' then return enter(run, parent, at, join) end
      set(run, parent, at, 'done')
    end
    id, job = parent, at
  end
end
local function go(run, id, job, target)
  if target ~= '' then return enter(run, id, job, target) end
  set(run, id, job, 'done')
  ended(run, id, job)
end
local function cancelled(run, id, job)
  local how = job.how
  if how == 'blocked' then cancel_children(run, id) end
  set(run, id, job, 'cancelled')
  if how ~= 'dead' then ended(run, id, job) end -- otherwise its end was counted before
end
-- A dead letter was redriven: its end counts no longer. While the job goes on, its run's state is kept.
local function revive(run, id, job)
  if not job.how then redis.call('HSET', run, 'live', 0) end
  if alive(run, 1) or not string.match(id, ABOVE) then redis.call('PERSIST', run) end
  set(run, id, job, 'active')
  if not string.match(id, ABOVE) then
    redis.call('HSET', run, 'state', 'running')
    redis.call('HDEL', run, 'ended')
    for _, member in ipairs(members(run)) do redis.call('ZADD', index, 0, member) end
  else
    local parent = waiting(run, id, job)
    if parent then
      redis.call('HINCRBY', run, 'failed:' .. parent, -1)
      redis.call('HINCRBY', run, 'pending:' .. parent, 1)
    end
  end
end

-- 4. Fan-outs.
-- *id* waits for children. Children from an earlier attempt that have not failed are not created again.
local function fan(run, id, job, entry, deliveries, target, policy, children)
  local which, list, pending, created = get(run, 'fan', id) or '1', {}, 0, 0
  local entering, kept = {}, {} -- jobs by their stage, and their state in the run
  local before = redis.call('HEXISTS', run, 'join:' .. id) == 1 -- the same fan-out again
  local nonce = nonces(run, now, #children + 1)
  local of, above = string.format('%.0f', nonce), id .. '/' .. which .. '/'
  for i, child in ipairs(children) do
    local name = above .. child.fields[4]
    local known = before and where(run, name) or {}
    if known.how and queues[known.stage] and outside(queues[known.stage], name) ~= NOTHING then
      event(run, name, known.stage)
      known = where(run, name)
    end
    list[i] = name
    if known.how ~= 'done' then pending = pending + 1 end
    if goes_on(known) then
      known.of = of
      set(run, name, known, known.how)
    elseif known.how ~= 'done' then
      child.fields[4], child.nonce = name, string.format('%.0f', nonce + i)
      entering[child.stage] = entering[child.stage] or {}
      table.insert(entering[child.stage], child)
      local last = #kept
      kept[last + 1], kept[last + 2] = 'at:' .. name, 'active ' .. child.stage .. ' ' .. child.nonce .. ' ' .. of
      if queues[child.stage].next ~= '' then
        kept[last + 3], kept[last + 4], kept[last + 5], kept[last + 6] = kept_as(name, child.fields)
      end
      created = created + 1
    end
  end
  if not before then kept[#kept + 1], kept[#kept + 2] = 'fanned:' .. above, string.format('%.0f', now) end
  for i = 1, stages do enter_stage_together(queues[names[i]], now, entering[names[i]] or {}) end
  if #kept > 0 then redis.call('HSET', run, unpack(kept)) end
  if created > 0 then alive(run, created) end
  redis.call('HSET', run, 'children:' .. id, cmsgpack.pack(list), 'fan:' .. id, which, 'pending:' .. id, pending,
    'failed:' .. id, 0, 'join:' .. id, target, 'policy:' .. id, policy, 'fanout:' .. id, of)
  local q = queues[job.stage]
  if pending == 0 then
    redis.call('HINCRBY', q.stats, 'completed', 1)
    note_event(q, 'completed', id)
    return go(run, id, job, target)
  end
  local fields = {unpack(kept_job(run, id))}
  fields[#fields + 1], fields[#fields + 2] = 'enq', string.match(entry, '^%d+')
  fields[#fields + 1], fields[#fields + 2] = 'attempt', string.format('%.0f', deliveries)
  fields[#fields + 1], fields[#fields + 2] = 'headrace-nonce', string.format('%.0f', job.nonce)
  redis.call('HSET', q.blocked, id, cmsgpack.pack(fields))
  redis.call('HSET', q.ids, id, 'blocked')
  set_mark(q.flows, id, NOTHING, job.nonce)
  set(run, id, job, 'blocked')
end

-- 5. Items: jobs move on, die, get the mark of an event, or are cancelled. Whether the job *id* that a stage's queue
-- holds, or held, under *nonce* is the job that its run knows there; `late` is a job that was redriven when its run's
-- state was gone.
local function known_as(job, id, stage, nonce)
  if not job.how then return not string.match(id, ABOVE) and 'late' end
  return job.stage == stage and same(job.nonce, nonce) and job.how
end
-- One stage of a job is done: the call that removes its entry moves it on.
local function move(run, item)
  local id, stage, entry, q = item.id, item.stage, item.entry, queues[item.stage]
  local registered, job = redis.call('HGET', q.ids, id) == entry, where(run, id)
  local what, nonce = outside(registered and q, id)
  local how = nonce and known_as(job, id, stage, nonce)
  local ours = how == 'active' or how == 'dead' or how == 'late'
  if worker ~= '' and not held_by(q.jobs, worker, {entry}, {item.count})[1] then return 0 end
  if ours and not able(run, id) then return 0 end
  local fans = item.policy ~= '' and what ~= CANCELLING
  local goes = ours and (fans or item.target ~= '')
  local known_job = goes and kept_job(run, id)
  local body = goes and (fans or not known_job) and redis.call('XRANGE', q.jobs, entry, entry)[1]
  if body then weigh(budget, body[2]) end
  local row = body and redis.pcall('XPENDING', q.jobs, 'workers', entry, entry, 1)[1] -- none without a group
  local gone = remove_entry(q, entry)
  if gone == 0 then return 0 end
  runs.forget(q.steps, id)
  if registered then
    redis.call('HDEL', q.ids, id)
    redis.call('ZREM', q.flows, id)
  end
  if not ours then -- a job of no flow with a flow's header; or a redriven job that was created again before
    redis.call('HINCRBY', q.stats, 'completed', 1)
    note_event(q, 'completed', id)
    return 1
  end
  if how ~= 'active' then
    job.stage, job.nonce = stage, nonce
    revive(run, id, job)
  end
  if body and not known_job then -- a child whose stage was a last one, or redriven so late that the run's state is gone
    local mine, headers, kept = parse(body[2])
    mine.attempt, mine.enq, mine.reason, mine.traceback, kept = nil, nil, nil, nil, {}
    for i = 1, #headers, 2 do
      if headers[i] ~= 'headrace-nonce' then kept[#kept + 1], kept[#kept + 2] = headers[i], headers[i + 1] end
    end
    keep_job(run, id, compose(mine, kept))
  end
  if item.kept then redis.call('HSET', run, 'result:' .. stage .. ':' .. id, item.result) end
  if fans then
    -- If it dies as a parent and is redriven, its token must go on growing.
    local deliveries = math.max(1, tonumber(parse(body[2]).attempt or 0) + (row and row[4] or 0))
    fan(run, id, job, entry, deliveries, item.target, item.policy, item.children)
  else
    redis.call('HINCRBY', q.stats, 'completed', 1)
    note_event(q, 'completed', id)
    if what == CANCELLING then cancelled(run, id, job) else go(run, id, job, item.target) end
  end
  return 1
end
-- A job whose run's key is foreign is kept among the dead: when that key is gone, it can be redriven.
local function set_aside(run, item)
  local q, id, entry = queues[item.stage], item.id, item.entry
  if worker ~= '' and not held_by(q.jobs, worker, {entry}, {item.count})[1] then return 0 end
  local body = redis.call('XRANGE', q.jobs, entry, entry)[1]
  if not body then return 0 end
  local own, headers = parse(body[2])
  local row = redis.pcall('XPENDING', q.jobs, 'workers', entry, entry, 1)[1]
  local releases = tonumber(redis.call('HGET', q.released, entry) or 0) or 0
  remove_entry(q, entry)
  if free_id(q, id, entry) then redis.call('ZREM', q.flows, id) end
  own.attempt = string.format('%.0f', tonumber(own.attempt or 0) + (row and row[4] or 0))
  own.id, own.enq = own.id or entry, own.enq or string.match(entry, '^%d+')
  local reason = 'the key of its run is no hash: remove ' .. run .. ', then redrive'
  buried[#buried + 1] = {item.stage, unpack(keep_dead(q.dead, q.stats, q.steps, dead_limit, reason, worker, releases, own, headers))}
  note_event(q, 'dead', id)
  return 0
end
-- Remove it from its queue, and notify its holder.
local function remove(q, id)
  local gone, held = remove_by_id(q, id)
  if gone > 0 then note_event(q, 'cancelled', id) end
  if held then tell_holders(q.control, held) end
end
-- Handle the mark of a job.
function event(run, id, stage)
  local q, job = queues[stage], where(run, id)
  local what, nonce = outside(q, id)
  if what == NOTHING or not able(run, id) then return 0 end
  redis.call('ZREM', q.flows, id)
  local how = known_as(job, id, stage, nonce)
  if what == REDRIVEN then
    if how == 'active' or how == 'dead' or how == 'late' then -- otherwise it was created again since, or its parents are gone
      set_mark(q.flows, id, NOTHING, nonce)
      job.stage, job.nonce = stage, nonce
      if how ~= 'active' then revive(run, id, job) end
    end
  elseif how == 'active' or how == 'blocked' or how == 'dead' then
    if what == COMPLETED then
      if how == 'dead' then revive(run, id, job) end
      go(run, id, job, q.next)
    elseif what == DIED then
      set(run, id, job, 'dead')
      if how ~= 'dead' then ended(run, id, job) end -- otherwise it was redriven, and died again before we knew
    else
      if what == CANCELLING then remove(q, id) end
      cancelled(run, id, job)
    end
  end
  return 1
end
local function cancel(run, id)
  local job = where(run, id)
  local what = outside(queues[job.stage], id)
  if what ~= NOTHING and what ~= CANCELLING then -- events outside of the flow come first: they may have ended the job
    event(run, id, job.stage)
    job = where(run, id)
  end
  local q = goes_on(job) and queues[job.stage]
  if not q or not able(run, id) then return 0 end
  redis.call('ZREM', q.flows, id)
  remove(q, id)
  cancelled(run, id, job)
  return 1
end

-- 6. Item by item.
local function fields_of(number)
  local fields = {}
  for i = 1, number do fields[i] = argument() end
  return fields
end
local function step()
  local item = {
    id = argument(), stage = argument(), entry = argument(), count = argument(), kept = argument() == '1',
    result = argument(), target = argument(), policy = argument(), children = {},
  }
  for i = 1, argument() do
    local first = at + 4 -- of its fields
    item.children[i] = {
      stage = ARGV[at + 1], delay = ARGV[at + 2], nonce = '', -- its full id and its nonce are known later
      fields = {ARGV[first], ARGV[first + 1], 'id', ARGV[at], unpack(ARGV, first + 2, first + ARGV[at + 3] - 1)},
    }
    at = first + ARGV[at + 3]
  end
  return item
end
local reply = {}
while at <= #ARGV and (#reply == 0 or fitting(budget, 1) > 0) do
  local kind, run, done = argument(), states[#reply + 1], nil
  if kind == 'move' then
    done = (foreign[run] and set_aside or move)(run, step())
  elseif kind == 'cancel' then
    if foreign[run] then return {err = foreign[run] .. ': the key ' .. run} end -- such an item comes alone
    done = cancel(run, argument())
  elseif kind == 'event' and not foreign[run] then
    done = event(run, argument(), argument())
  else
    local id, stage = argument(), argument()
    done = redis.call('ZREM', queues[stage].flows, id)
  end
  reply[#reply + 1] = done
end
for i = 1, stages do publish_noted(queues[names[i]], worker) end
if #buried > 0 then reply[#reply + 1] = buried end
return answer(reply)
