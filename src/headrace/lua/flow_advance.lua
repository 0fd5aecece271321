-- flow_advance: move jobs of flows on, however their stages ended. Of several calls for one job, one wins.
-- KEYS   lane (string), index (zset), others...
-- ARGV   call, worker, result_ttl, dead_limit int, stages count, items...
-- REPLY  one per item, as far as 1 MiB of their jobs goes: 1 this call did it · 0 another call already had, it is not
--        this worker's any more (fenced), the flow would have to go to a stage that is not among these, or the key of
--        its run is foreign: a job that would move is a dead letter now, with a reason that names the key. Last, if there
--        are any, the jobs that are dead letters now: a list of {stage, id, attempts, reason, kind}
-- COST   10 us + 3 us per stage + 20 us per item + 6 us per child
-- Keys: jobs, wake, ids, leases, released, delayed, bodies, blocked, dead, stats, flows, events, control, limited,
-- asleep, steps, held, slots, settled, stopped, cancels, ends, ended of each stage's queue, then flow:<id> for each item. worker: '' for first completer wins, else the fence. Items:
-- `stages` times {name, default next stage or ''}, then any of {"move", id, stage, entry, delivery count, kept (1 there
-- is a result, 0 none), result, next stage ('' ends it), failed, number of children, children...}: the job leaves its
-- stage, at once when `failed` is '', else when its children have ended ("fail", "continue" or "cancel": the reaction
-- to a failed child), each child {name, stage, delay, number of fields, fields... without its id} · {"event", id,
-- stage}: a row of flow_events · {"forget", id, stage}: a member that can't be a job of a run · {"cancel", id}. At most
-- 1,000 children.
-- @feature leases
-- @feature delayed
-- @feature dead
-- @feature workers
-- @include cancellations
-- @include clock
-- @include enter_stage
-- @include fields
-- @include limits
-- @include held_by
-- @include keep_dead
-- @include history
-- @include flows
-- @include note_event
-- @include number
-- @include page
-- @include reason
-- @include record
-- @include remove_by_id
-- @include require_types
-- @include depart
-- @include runs
-- @include strings_of
-- @include tell_holders
whole(result_ttl, 1)
local known = recorded()
if known then return known end

-- 1. The stages, and the runs.
local PARTS = {'jobs', 'wake', 'ids', 'leases', 'released', 'delayed', 'bodies', 'blocked', 'dead', 'stats', 'flows', 'events', 'control',
               'limited', 'asleep', 'steps', 'held', 'slots', 'settled', 'stopped', 'cancels', 'ends', 'ended'}
local ABOVE = '^(.*)/(%d+)/[^/]*$' -- a child's id: its parent's, which of the parent's fan-outs, its name
local at = items
local function argument()
  at = at + 1
  return ARGV[at - 1]
end
local names, queues, states, foreign, now, budget, dead_ids = {}, {}, {}, {}, clock(), new_budget(), {}
require_sorted_sets(index)
for i = 1, stages do
  names[i] = argument()
  local q = {next = argument(), levels = {n = 0}}
  for j, part in ipairs(PARTS) do q[part] = others[#PARTS * (i - 1) + j] end
  require_streams(q.jobs, q.wake)
  require_hashes(q.ids, q.stats)
  require_sorted_sets(q.flows)
  if redis.call('EXISTS', q.dead, q.released, q.bodies, q.blocked, q.steps, q.leases, q.delayed, q.limited, q.asleep, q.cancels) > 0 then
    require_streams(q.dead)
    require_hashes(q.released, q.bodies, q.blocked, q.steps)
    require_sorted_sets(q.leases, q.delayed, q.limited, q.asleep, q.cancels)
  end
  holds.check(q)
  q.history = redis.call('HGET', q.stats, 'history')
  require_history(q.history, q.ends, q.ended)
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
-- Why jobs of the run are dead, or were cancelled.
local reasons = {REMOVED = 'its job was removed from its queue: cancelled, purged or deleted there'}
-- Keep why a job is dead, or was cancelled; nil if that says itself.
function reasons.keep(run, id, why)
  if why then redis.call('HSET', run, 'why:' .. id, shortened(why, REASON_BYTES)) else redis.call('HDEL', run, 'why:' .. id) end
end
-- Why a job died outside of the flow, as that script said. It is removed.
function reasons.of_death(q, id)
  local why = redis.call('HGET', q.steps, runs.why(id))
  if why then redis.call('HDEL', q.steps, runs.why(id)) end
  return why == '' and 'no reason was given' or why or 'its reason is not known'
end
-- Count the jobs of the run that go on; nil for a run from before they were counted.
local function alive(run, n)
  return redis.call('HEXISTS', run, 'live') == 1 and redis.call('HINCRBY', run, 'live', n) or nil
end
-- Jobs that wait for children.
local parents = {}
-- The parent that waits for *id*, and its place. The name is not enough: earlier fan-outs may have had a child of it.
function parents.waiting(run, id, job)
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
    local parent, at = parents.waiting(run, id, where(run, id))
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
-- The fields of jobs that the run keeps for their next stages. `read` has the fields that this call has read.
local jobs_kept = {read = {}}
-- The headers of a job as its run keeps them; nil if they were removed, or overwritten, by hand.
function jobs_kept.headers(packed)
  local fields = strings_of(packed)
  return fields and #fields % 2 == 0 and fields or nil
end
-- The fields of a job, kept for its next stage, read once; nil if they were removed, or overwritten, by hand.
function jobs_kept.job(run, id)
  local name = run .. ' ' .. id
  if jobs_kept.read[name] == nil then
    local data, packed = unpack(redis.call('HMGET', run, 'data:' .. id, 'job:' .. id))
    local others = data and jobs_kept.headers(packed)
    if others then weigh(budget, {data, packed}) end
    jobs_kept.read[name] = others and {'data', data, 'id', id, unpack(others)} or false
  end
  return jobs_kept.read[name] or nil
end
function jobs_kept.keep(run, id, fields)
  jobs_kept.read[run .. ' ' .. id] = fields
  redis.call('HSET', run, kept_as(id, fields))
end
-- The fields with which a job goes on, without the fields of the stage that it leaves.
function jobs_kept.onward(id, own, headers)
  local kept = {}
  for i = 1, #headers, 2 do
    if headers[i] ~= 'headrace-nonce' then kept[#kept + 1], kept[#kept + 2] = headers[i], headers[i + 1] end
  end
  return compose({data = own.data or '', id = id}, kept)
end
-- The same from the record of its wait for children; nil without one, or for foreign bytes.
function jobs_kept.waited(id, body)
  local fields = body and jobs_kept.headers(body)
  if not fields or fields[1] ~= 'data' then return nil end
  return jobs_kept.onward(id, parse(fields))
end
-- Whether nothing is kept of a child because its stage was a last one when it entered it: it has passed no other.
function jobs_kept.none(run, id, job)
  if not string.match(id, ABOVE) then return false end
  local asked = {'data:' .. id, 'job:' .. id}
  for i = 1, stages do
    if names[i] ~= job.stage then asked[#asked + 1] = 'left:' .. names[i] .. ':' .. id end
  end
  for _, known in ipairs(redis.call('HMGET', run, unpack(asked))) do
    if known then return false end
  end
  return true
end
-- Make a dead letter of the parts of a job that its run still has: our fields, its headers, and which parts are lost.
function jobs_kept.remains(run, id, job)
  local lost = {}
  local data, packed = unpack(redis.call('HMGET', run, 'data:' .. id, 'job:' .. id))
  local others = jobs_kept.headers(packed)
  weigh(budget, {data or '', packed or ''})
  if not data then lost[#lost + 1] = 'its payload (data:' .. id .. ')' end
  if not others then lost[#lost + 1] = 'its headers (job:' .. id .. ')' end
  local own = {data = data or '', id = id, attempt = '0', enq = string.format('%.0f', now)}
  local headers = others or {'headrace-flow', run}
  headers[#headers + 1], headers[#headers + 2] = 'headrace-nonce', string.format('%.0f', job.nonce)
  return own, headers, #lost > 0 and 'the state of its run has lost ' .. table.concat(lost, ' and ') or nil
end
-- The ends of jobs for the histories of their queues, which are written at the end of the script. *more* has the known
-- facts of the job: attempt, worker, reason, fields, run, deliveries.
local histories = {room = runs.room(), STATES = {'completed', 'cancelled', 'dead'}, CHILDREN_BYTES = 16384}
function histories.add(q, state, id, more)
  if not q.history then return end
  q.over = q.over or {}
  local some = q.over[state] or {ids = {}, attempts = {}, workers = {}, reasons = {}, jobs = {}, runs = {}, deliveries = {}}
  local n = #some.ids + 1
  some.ids[n], some.attempts[n], some.workers[n] = id, more.attempt or 0, more.worker or ''
  some.reasons[n], some.jobs[n] = more.reason or '', more.fields or false
  some.runs[n], some.deliveries[n] = more.run or nil, more.run and more.deliveries or 0
  q.over[state] = some
end
function histories.note(q, state, id, more)
  note_event(q, state, id)
  histories.add(q, state, id, more)
end
-- Of two ends of one job in one script, the later state counts.
function histories.write(q, state)
  local some = q.over and q.over[state]
  if some then keep_ends(q.history, q.ends, q.ended, state, some.ids, some) end
end
-- The end of a job whose entry, of this *body*, is about to be removed; *row* is its own of the pending list.
function histories.of_entry(q, id, entry, body, row)
  if not q.history then return {} end
  local own, headers = parse(body[2])
  local count = tonumber(own.attempt or 0) + (row and row[4] or 0)
  local releases = tonumber(redis.call('HGET', q.released, entry) or 0) or 0
  own.enq = own.enq or string.match(entry, '^%d+')
  return {
    attempt = string.format('%.0f', math.max(1, count - releases)), worker = row and row[2], attempts = own.attempts,
    fields = compose(own, headers), run = runs.kept(q.steps, id, histories.room), deliveries = count,
  }
end
-- Add the places of a job's children to its fields: how many have completed, failed and were cancelled, and the id, the
-- last stage and the state of each, as far as 16 KiB go.
function histories.add_children(q, run, fields, children)
  if not q.history or #children == 0 then return fields end
  local numbers, rows, size = {done = 0, dead = 0, cancelled = 0}, {}, 0
  for _, child in ipairs(children) do
    local job = where(run, child)
    local how = job.how or ''
    if numbers[how] then numbers[how] = numbers[how] + 1 end
    rows[#rows + 1] = '\30' .. child .. '\31' .. (job.stage or '') .. '\31' .. how
    size = size + #rows[#rows]
    if size > histories.CHILDREN_BYTES then table.remove(rows) end
  end
  local counted = string.format('%.0f %.0f %.0f', numbers.done, numbers.dead, numbers.cancelled)
  fields[#fields + 1], fields[#fields + 2] = 'headrace-children', counted .. table.concat(rows)
  return fields
end
-- A job of which a part is lost is a dead letter of the stage that it enters.
function jobs_kept.lose(run, id, job)
  local q = queues[job.stage]
  local own, headers, why = jobs_kept.remains(run, id, job)
  redis.call('ZREM', q.cancels, id)
  redis.call('HINCRBY', q.stats, 'enqueued', 1)
  local fields = q.history and compose(own, headers)
  dead_ids[#dead_ids + 1] = {job.stage, unpack(keep_dead(q, dead_limit, why, '', 0, own, headers))}
  histories.note(q, 'dead', id, {reason = why, fields = fields})
  reasons.keep(run, id, why)
end
local ended
-- *body*: the record of its wait for children, if it has waited.
local function enter(run, id, job, stage, body)
  local fields = jobs_kept.job(run, id)
  if not fields then
    fields = jobs_kept.waited(id, body)
    if fields then jobs_kept.keep(run, id, fields) end
  end
  if not fields and not body and jobs_kept.none(run, id, job) then
    set(run, id, job, 'done')
    return ended(run, id, job)
  end
  local left = job.stage
  job.stage, job.nonce = stage, nonces(run, now, 1)
  if not fields then
    jobs_kept.lose(run, id, job)
    set(run, id, job, 'dead', left)
    return ended(run, id, job)
  end
  enter_stage(queues[stage], id, now, '', fields, job.nonce)
  set(run, id, job, 'active', left)
  if redis.call('HDEL', run, 'join:' .. id) == 1 then redis.call('HINCRBY', run, 'fan:' .. id, 1) end -- its next fan-out is another one
end
function parents.children(run, id) return strings_of(get(run, 'children', id)) or {} end
-- The end of a job that waited for children, by the record of its wait.
function histories.of_parent(q, run, id, body)
  local fields = q.history and jobs_kept.headers(body)
  if not fields then return {} end
  local attempt = parse(fields).attempt
  return {attempt = attempt, fields = histories.add_children(q, run, fields, parents.children(run, id))}
end
-- The end of a job that is to be removed, in any state.
function histories.of_removed(q, run, id)
  local entry = q.history and redis.call('HGET', q.ids, id)
  if entry == 'blocked' then return histories.of_parent(q, run, id, redis.call('HGET', q.blocked, id) or '') end
  if entry == 'delayed' then return {fields = jobs_kept.headers(redis.call('HGET', q.bodies, id) or '')} end
  local body = entry and string.match(entry, '^%d+%-%d+$') and redis.call('XRANGE', q.jobs, entry, entry)[1]
  local more = body and histories.of_entry(q, id, entry, body) or {}
  return {fields = more.fields, run = more.run, deliveries = more.deliveries}
end
-- Mark the children of *id* for cancelling: sweeps of events cancel them, a page at a time.
function parents.cancel_children(run, id)
  local marks, children = {}, parents.children(run, id)
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
-- The first child that died, or else that was cancelled, and why, for the reason of its parent.
function reasons.of_children(run, children)
  local first = nil
  for _, child in ipairs(children) do
    local how = where(run, child).how
    if how == 'dead' or how == 'cancelled' and not first then first = child end
    if how == 'dead' then break end
  end
  local why = first and get(run, 'why', first)
  return first and ', the first ' .. first .. (why and ': ' .. why or '') or ''
end
local event
-- *id* has ended: done, dead or cancelled. After its last child a parent goes on, dies, or ends.
function ended(run, id, job)
  while true do
    local how, live = job.how, alive(run, -1)
    if how ~= 'dead' then redis.call('HDEL', run, 'data:' .. id, 'job:' .. id) end
    jobs_kept.read[run .. ' ' .. id] = nil
    if not string.match(id, ABOVE) then
      local state = ({done = 'completed', dead = 'failed', cancelled = 'cancelled'})[how]
      for _, member in ipairs(members(run)) do redis.call('ZREM', index, member) end
      redis.call('HSET', run, 'state', state, 'ended', string.format('%.0f', now))
      if not live then redis.call('PEXPIRE', run, result_ttl) end
    end
    if live == 0 then redis.call('PEXPIRE', run, result_ttl) end -- the last job of the run
    local parent, at = parents.waiting(run, id, job)
    if not parent then return end
    if how ~= 'done' then
      local failed = redis.call('HINCRBY', run, 'failed:' .. parent, 1)
      if failed == 1 and get(run, 'policy', parent) == 'cancel' then parents.cancel_children(run, parent) end
    end
    if redis.call('HINCRBY', run, 'pending:' .. parent, -1) > 0 then return end
    local q, join = queues[at.stage], get(run, 'join', parent)
    local what, nonce = outside(q, parent)
    if nonce and what ~= NOTHING then return end -- it is cancelled, or will be
    -- A redriven child, which no call has handled yet, has not ended.
    local children = tonumber(get(run, 'failed', parent)) > 0 and parents.children(run, parent) or {}
    for _, child in ipairs(children) do
      local dead = where(run, child)
      if dead.how == 'dead' and outside(queues[dead.stage], child) == REDRIVEN then event(run, child, dead.stage) end
    end
    if tonumber(get(run, 'pending', parent)) > 0 then return end
    local failed = tonumber(get(run, 'failed', parent))
    local dies = failed > 0 and get(run, 'policy', parent) ~= 'continue'
    local body = (dies or q.history or join ~= '' and not jobs_kept.job(run, parent)) and redis.call('HGET', q.blocked, parent) or ''
    weigh(budget, {body})
    redis.call('HDEL', q.blocked, parent)
    redis.call('HDEL', q.ids, parent)
    redis.call('ZREM', q.flows, parent)
    if dies then
      local fields, own, headers, lost = jobs_kept.headers(body), nil, nil, nil
      if fields then own, headers = parse(fields) else own, headers, lost = jobs_kept.remains(run, parent, at) end
      local reason = (lost and lost .. '; ' or '') .. failed .. ' of ' .. #children .. ' children failed' .. reasons.of_children(run, children)
      own.attempt = own.attempt or '1'
      own.id = parent
      fields = q.history and histories.add_children(q, run, compose(own, headers), children)
      dead_ids[#dead_ids + 1] = {at.stage, unpack(keep_dead(q, dead_limit, reason, '', math.max(0, own.attempt - 1), own, headers))}
      histories.note(q, 'dead', parent, {attempt = own.attempt, reason = reason, fields = fields})
      reasons.keep(run, parent, reason)
      set(run, parent, at, 'dead')
    else
      redis.call('HINCRBY', q.stats, 'completed', 1)
      histories.note(q, 'completed', parent, histories.of_parent(q, run, parent, body))
      if join ~= '' then return enter(run, parent, at, join, body) end
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
local function cancelled(run, id, job, why)
  local how = job.how
  if how == 'blocked' then parents.cancel_children(run, id) end
  reasons.keep(run, id, why)
  set(run, id, job, 'cancelled')
  if how ~= 'dead' then ended(run, id, job) end -- otherwise its end was counted before
end
-- Why a child that was marked for it is cancelled.
function reasons.of_cancel(run, id)
  local parent = string.match(id, ABOVE)
  if parent and where(run, parent).how == 'cancelled' then return 'its parent was cancelled' end
  return parent and 'another child of its parent failed' or nil
end
-- A dead letter was redriven: its end counts no longer. While the job goes on, its run's state is kept.
local function revive(run, id, job)
  if not job.how then redis.call('HSET', run, 'live', 0) end
  if alive(run, 1) or not string.match(id, ABOVE) then redis.call('PERSIST', run) end
  reasons.keep(run, id, nil)
  set(run, id, job, 'active')
  if not string.match(id, ABOVE) then
    redis.call('HSET', run, 'state', 'running')
    redis.call('HDEL', run, 'ended')
    for _, member in ipairs(members(run)) do redis.call('ZADD', index, 0, member) end
  else
    local parent = parents.waiting(run, id, job)
    if parent then
      redis.call('HINCRBY', run, 'failed:' .. parent, -1)
      redis.call('HINCRBY', run, 'pending:' .. parent, 1)
    end
  end
end

-- 4. Fan-outs.
-- *id* waits for children. Children from an earlier attempt that have not failed are not created again.
function parents.fan(run, id, job, entry, deliveries, target, policy, children, more)
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
    more.fields = more.fields and histories.add_children(q, run, more.fields, list)
    histories.note(q, 'completed', id, more)
    return go(run, id, job, target)
  end
  local fields = {unpack(jobs_kept.job(run, id))}
  fields[#fields + 1], fields[#fields + 2] = 'enq', string.match(entry, '^%d+')
  fields[#fields + 1], fields[#fields + 2] = 'attempt', string.format('%.0f', deliveries)
  fields[#fields + 1], fields[#fields + 2] = 'headrace-nonce', string.format('%.0f', job.nonce)
  if more.attempts then fields[#fields + 1], fields[#fields + 2] = 'headrace-attempts', more.attempts end
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
  local known_job = goes and jobs_kept.job(run, id)
  local body = (q.history or goes and (fans or not known_job)) and redis.call('XRANGE', q.jobs, entry, entry)[1]
  if body then weigh(budget, body[2]) end
  local row = body and redis.pcall('XPENDING', q.jobs, 'workers', entry, entry, 1)[1] -- none without a group
  local more = body and histories.of_entry(q, id, entry, body, row) or {}
  if depart(q, {entry}, {ids = {id}}) == 0 then return 0 end
  runs.forget(q.steps, id)
  if registered then redis.call('ZREM', q.flows, id) end
  if not ours then -- a job of no flow with a flow's header; or a redriven job that was created again before
    redis.call('HINCRBY', q.stats, 'completed', 1)
    histories.note(q, 'completed', id, more)
    return 1
  end
  if how ~= 'active' then
    job.stage, job.nonce = stage, nonce
    revive(run, id, job)
  end
  if goes and body and not known_job then -- a child whose stage was a last one, or redriven so late that the run's state is gone
    jobs_kept.keep(run, id, jobs_kept.onward(id, parse(body[2])))
  end
  local result = 'result:' .. stage .. ':' .. id -- one that it had there before is no longer its own
  if item.kept then redis.call('HSET', run, result, item.result) else redis.call('HDEL', run, result) end
  if fans then
    -- If it dies as a parent and is redriven, its token must go on growing.
    local deliveries = math.max(1, tonumber(parse(body[2]).attempt or 0) + (row and row[4] or 0))
    parents.fan(run, id, job, entry, deliveries, item.target, item.policy, item.children, more)
  else
    redis.call('HINCRBY', q.stats, 'completed', 1)
    histories.note(q, 'completed', id, more)
    if what == CANCELLING then
      redis.call('HSETNX', q.stats, 'cancelled', 0) -- so that a new job of its id looks
      cancellations.note(q.cancels, {id}, result_ttl)
      histories.add(q, 'cancelled', id, more)
      cancelled(run, id, job, reasons.of_cancel(run, id))
    else
      go(run, id, job, item.target)
    end
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
  local more = histories.of_entry(q, id, entry, body, row)
  if redis.call('HGET', q.ids, id) == entry then redis.call('ZREM', q.flows, id) end
  depart(q, {entry}, {ids = {id}})
  own.attempt = string.format('%.0f', tonumber(own.attempt or 0) + (row and row[4] or 0))
  own.id, own.enq = own.id or entry, own.enq or string.match(entry, '^%d+')
  local reason = 'the key of its run is no hash: remove ' .. run .. ', then redrive'
  dead_ids[#dead_ids + 1] = {item.stage, unpack(keep_dead(q, dead_limit, reason, worker, releases, own, headers))}
  more.reason = reason
  histories.note(q, 'dead', id, more)
  return 0
end
-- Remove it from its queue, and notify its holder.
local function remove(q, run, id)
  local more = histories.of_removed(q, run, id)
  local gone, holder = remove_by_id(q, id)
  if gone > 0 then
    histories.note(q, 'cancelled', id, more)
    cancellations.note(q.cancels, {id}, result_ttl)
  end
  if holder then tell_holders(q.control, holder) end
end
-- Keep the fields of a job that was redriven when its run's state was gone, if it still waits: another program may
-- complete it.
function jobs_kept.again(run, q, id)
  local entry = redis.call('HGET', q.ids, id)
  local body = entry and string.match(entry, '^%d+%-%d+$') and redis.call('XRANGE', q.jobs, entry, entry)[1]
  if not body then return end
  weigh(budget, body[2])
  jobs_kept.keep(run, id, jobs_kept.onward(id, parse(body[2])))
end
-- Handle the mark of a job.
function event(run, id, stage)
  local q, job = queues[stage], where(run, id)
  local what, nonce = outside(q, id)
  if what == NOTHING or not able(run, id) then return 0 end
  redis.call('ZREM', q.flows, id)
  local how, why = known_as(job, id, stage, nonce), reasons.of_death(q, id)
  if what == REDRIVEN then
    if how == 'active' or how == 'dead' or how == 'late' then -- otherwise it was created again since, or its parents are gone
      set_mark(q.flows, id, NOTHING, nonce)
      job.stage, job.nonce = stage, nonce
      if how ~= 'active' then revive(run, id, job) end
      if how == 'late' then jobs_kept.again(run, q, id) end
    end
  elseif how == 'active' or how == 'blocked' or how == 'dead' then
    if what == COMPLETED then
      if how == 'dead' then revive(run, id, job) end
      redis.call('HDEL', run, 'result:' .. stage .. ':' .. id)
      go(run, id, job, q.next)
    elseif what == DIED then
      reasons.keep(run, id, why)
      set(run, id, job, 'dead')
      if how ~= 'dead' then ended(run, id, job) end -- otherwise it was redriven, and died again before we knew
    else
      if what == CANCELLING then remove(q, run, id) end
      cancelled(run, id, job, what == CANCELLING and reasons.of_cancel(run, id) or reasons.REMOVED)
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
  remove(q, run, id)
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
    redis.call('HDEL', queues[stage].steps, runs.why(id))
  end
  reply[#reply + 1] = done
end
for i = 1, stages do
  for _, state in ipairs(histories.STATES) do histories.write(queues[names[i]], state) end
  publish_noted(queues[names[i]], worker)
end
if #dead_ids > 0 then reply[#reply + 1] = dead_ids end
return answer(reply)
