-- flow_advance: move jobs of flows on, however their stages ended. Of several calls for one job, one wins.
-- KEYS   lane (string), index (zset), others...
-- ARGV   call, worker, result_ttl, dead_limit int, stages count, items...
-- REPLY  one per item, as far as 1 MiB of their jobs goes: 1 this call did it · 0 another call already had, it is not
--        this worker's any more (fenced), the flow would have to go to a stage that is not among these, or the key of
--        its run is foreign: a job that would move is a dead letter now, with a reason that names the key. Last, if there
--        are any, lists: the jobs that are dead letters now, each {stage, id, attempts, reason, kind}; open children, as in cancel
-- COST   10 us + 3 us per stage + 20 us per item + 6 us per child
-- Keys: jobs, wake, ids, leases, released, delayed, bodies, blocked, dead, stats, flows, events, control, limited,
-- asleep, steps, held, slots, settled, stopped, cancels, ends, ended of each stage's queue, then flow:<id> for each item. worker: '' for first completer wins, else the fence. Items:
-- `stages` times {name, default next stage or ''}, then any of {"move", id, stage, entry, delivery count, kept (1 there
-- is a result, 0 none), result, next stage ('' ends it), failed, number of children, children...}: the job leaves its
-- stage, at once when `failed` is '', else when its children have ended ("fail", "continue" or "cancel": the reaction
-- to a failed child), each child {name, stage, delay, number of fields, fields... without its id} · {"event", id,
-- stage}: a row of flow_events · {"forget", id, stage}: a member that can't be a job of a run · {"cancel", id}. At most
-- 1,000 children.
whole(result_ttl, 1)

-- 1. The stages, and the runs.
local PARTS = {
  'jobs', 'wake', 'ids', 'leases', 'released', 'delayed', 'bodies', 'blocked', 'dead', 'stats', 'flows', 'events',
  'control', 'limited', 'asleep', 'steps', 'held', 'slots', 'settled', 'stopped', 'cancels', 'ends', 'ended',
}
local at = items -- of the next argument
local function argument()
  at = at + 1
  return ARGV[at - 1]
end
local now = clock()
local budget = new_budget()
local names = {} -- of the stages
local queues = {} -- by stage
local states = {} -- the keys of runs, one for each item
local foreign = {} -- the errors of keys that are no hashes
local dead_ids = {} -- the jobs that are dead letters now
local orphans = {left = runs.BYTES} -- the open children of cancelled jobs
require_sorted_sets(index)
for i = 1, stages do
  local q = {levels = {n = 0}}
  names[i] = argument()
  q.next = argument()
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
  local run = others[i]
  local length = redis.pcall('HLEN', run)
  states[#states + 1] = run
  foreign[run] = type(length) == 'table' and length.err or nil
end

-- @fragments

-- 2. Items: jobs move on, die, get the mark of an event, or are cancelled.
-- Whether the job *id* that a stage's queue holds, or held, under *nonce* is the job that its run knows there; `late` is a
-- job that was redriven when its run's state was gone.
local function known_how(job, id, stage, nonce)
  if not job.how then return not string.match(id, ABOVE) and 'late' end
  return job.stage == stage and same_entry(job.nonce, nonce) and job.how
end
-- The row of an entry in the pending list; nil without a group.
local function row_in(q, entry) return redis.pcall('XPENDING', q.jobs, 'workers', entry, entry, 1)[1] end
-- Whether the caller may settle a lease: it holds it, or asks for no fence.
local function may_settle(q, item)
  return worker == '' or held_by(q.jobs, worker, {item.entry}, {item.count})[1]
end
-- One stage of a job is done: the call that removes its entry moves it on.
local function move(run, item)
  local id = item.id
  local stage = item.stage
  local entry = item.entry
  local q = queues[stage]
  local is_named = redis.call('HGET', q.ids, id) == entry
  local job = where(run, id)
  local what, nonce = outside(is_named and q, id)
  local how = nonce and known_how(job, id, stage, nonce)
  local ours = how == 'active' or how == 'dead' or how == 'late'
  if not may_settle(q, item) then return 0 end
  if ours and not parents.known(run, id) then return 0 end

  local fans = item.policy ~= '' and what ~= CANCELLING
  local goes = ours and (fans or item.target ~= '')
  local known_job = goes and jobs_kept.job(run, id)
  local wanted = q.history or goes and (fans or not known_job)
  local body = wanted and redis.call('XRANGE', q.jobs, entry, entry)[1]
  if body then weigh(budget, body[2]) end
  local row = body and row_in(q, entry)
  local more = body and histories.of_entry(q, id, entry, body, row) or {}
  if depart(q, {entry}, {ids = {id}}) == 0 then return 0 end
  runs.forget(q.steps, id)
  if is_named then redis.call('ZREM', q.flows, id) end
  if not ours then -- a job of no flow with a flow's header; or a redriven job that was created again before
    redis.call('HINCRBY', q.stats, 'completed', 1)
    histories.note(q, 'completed', id, more)
    return 1
  end

  if how ~= 'active' then
    job.stage = stage
    job.nonce = nonce
    revive(run, id, job)
  end
  if goes and body and not known_job then -- a child whose stage was a last one, or redriven so late that the run's state is gone
    jobs_kept.keep(run, id, jobs_kept.onward(id, parse(body[2])))
  end
  local result = 'result:' .. stage .. ':' .. id
  if item.kept then
    redis.call('HSET', run, result, item.result)
  else
    redis.call('HDEL', run, result) -- one that it had there before is no longer its own
  end
  if fans then
    -- If it dies as a parent and is redriven, its token must go on growing.
    local deliveries = math.max(1, tonumber(parse(body[2]).attempt or 0) + (row and row[4] or 0))
    fan_out(run, id, job, entry, deliveries, item.target, item.policy, item.children, more)
  else
    redis.call('HINCRBY', q.stats, 'completed', 1)
    histories.note(q, 'completed', id, more)
    if what == CANCELLING then
      redis.call('HSETNX', q.stats, 'cancelled', 0) -- so that a new job of its id looks
      cancellations.note(q.cancels, {id}, result_ttl)
      histories.add(q, 'cancelled', id, more)
      cancelled(run, id, job, causes.of_cancel(run, id))
    else
      go(run, id, job, item.target)
    end
  end
  return 1
end
-- A job whose run's key is foreign is kept among the dead: when that key is gone, it can be redriven.
local function set_aside(run, item)
  local id = item.id
  local entry = item.entry
  local q = queues[item.stage]
  if not may_settle(q, item) then return 0 end
  local body = redis.call('XRANGE', q.jobs, entry, entry)[1]
  if not body then return 0 end
  local own, headers = parse(body[2])
  local row = row_in(q, entry)
  local releases = tonumber(redis.call('HGET', q.released, entry) or 0) or 0
  local more = histories.of_entry(q, id, entry, body, row)
  if redis.call('HGET', q.ids, id) == entry then redis.call('ZREM', q.flows, id) end
  depart(q, {entry}, {ids = {id}})
  own.attempt = string.format('%.0f', tonumber(own.attempt or 0) + (row and row[4] or 0))
  own.id = own.id or entry
  own.enq = own.enq or string.match(entry, '^%d+')
  more.reason = 'the key of its run is no hash: remove ' .. run .. ', then redrive'
  local letter = keep_dead(q, dead_limit, more.reason, worker, releases, own, headers)
  table.insert(dead_ids, {item.stage, unpack(letter)})
  histories.note(q, 'dead', id, more)
  return 0
end
-- Remove a job from its queue, and notify its holder.
local function remove(q, run, id)
  local more = histories.of_removed(q, run, id)
  for _, part in ipairs(runs.open_children(q.steps, id, orphans)) do orphans[#orphans + 1] = part end
  local gone, holder = remove_by_id(q, id)
  if gone > 0 then
    histories.note(q, 'cancelled', id, more)
    cancellations.note(q.cancels, {id}, result_ttl)
  end
  if holder then tell_holders(q.control, holder) end
end
-- A dead letter is to run again.
local function redriven(run, id, stage, nonce, how, job)
  local q = queues[stage]
  if how ~= 'active' and how ~= 'dead' and how ~= 'late' then return end -- it was created again since, or its parents are gone
  set_mark(q.flows, id, NOTHING, nonce)
  job.stage = stage
  job.nonce = nonce
  if how ~= 'active' then revive(run, id, job) end
  if how == 'late' then jobs_kept.again(run, q, id) end
end
-- Handle the mark of a job.
function event(run, id, stage)
  local q = queues[stage]
  local job = where(run, id)
  local what, nonce = outside(q, id)
  if what == NOTHING or not parents.known(run, id) then return 0 end
  redis.call('ZREM', q.flows, id)
  local how = known_how(job, id, stage, nonce)
  local why = causes.of_death(q, id)
  if what == REDRIVEN then
    redriven(run, id, stage, nonce, how, job)
  elseif how == 'active' or how == 'blocked' or how == 'dead' then
    if what == COMPLETED then
      if how == 'dead' then revive(run, id, job) end
      redis.call('HDEL', run, 'result:' .. stage .. ':' .. id)
      go(run, id, job, q.next)
    elseif what == DIED then
      causes.keep(run, id, why)
      set_place(run, id, job, 'dead')
      if how ~= 'dead' then end_job(run, id, job) end -- otherwise it was redriven, and died again before we knew
    elseif what == CANCELLING then
      remove(q, run, id)
      cancelled(run, id, job, causes.of_cancel(run, id))
    else
      cancelled(run, id, job, causes.of_removal)
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
  if not q or not parents.known(run, id) then return 0 end
  redis.call('ZREM', q.flows, id)
  remove(q, run, id)
  cancelled(run, id, job)
  return 1
end

-- 3. Item by item.
-- Read the arguments of a job that moves.
local function step()
  local item = {}
  item.id = argument()
  item.stage = argument()
  item.entry = argument()
  item.count = argument()
  item.kept = argument() == '1'
  item.result = argument()
  item.target = argument()
  item.policy = argument()
  item.children = {}
  for i = 1, argument() do
    local name = argument()
    local child = {nonce = ''} -- its full id and its nonce are known later
    child.stage = argument()
    child.delay = argument()
    local first = at + 1 -- of its fields, behind their number
    at = first + argument()
    child.fields = {ARGV[first], ARGV[first + 1], 'id', name, unpack(ARGV, first + 2, at - 1)}
    item.children[i] = child
  end
  return item
end
local reply = {}
while at <= #ARGV and (#reply == 0 or fitting(budget, 1) > 0 and orphans.left > 0) do
  local kind = argument()
  local run = states[#reply + 1]
  local done
  if kind == 'move' then
    done = (foreign[run] and set_aside or move)(run, step())
  elseif kind == 'cancel' then
    if foreign[run] then return {err = foreign[run] .. ': the key ' .. run} end -- such an item comes alone
    done = cancel(run, argument())
  elseif kind == 'event' and not foreign[run] then
    done = event(run, argument(), argument())
  else
    local id = argument()
    local q = queues[argument()]
    done = redis.call('ZREM', q.flows, id)
    redis.call('HDEL', q.steps, runs.why(id))
  end
  reply[#reply + 1] = done
end
for i = 1, stages do
  local q = queues[names[i]]
  histories.write(q)
  publish_noted(q, worker)
end
if #dead_ids + #orphans > 0 then reply[#reply + 1], reply[#reply + 2] = dead_ids, orphans end
return answer(reply)
