-- flow_advance: move jobs of flows on, however their stages ended. Each effect is the winner's, who is found out here.
-- KEYS   lane (string), index (zset), stages and runs...
-- ARGV   call, worker, result_ttl, dead_limit, stages, items...
-- REPLY  one per item: 1 this call did it · 0 somebody already had, it is not this worker's any more (fenced), or the
--        flow would have to go to a stage that is not among these
-- COST   10 us + 3 us per stage + 20 us per item + 8 us per child
-- Keys: jobs, wake, ids, leases, released, delayed, bodies, blocked, dead, stats, flows, events, control of each stage's
-- queue, then flow:<id> for each item. worker: '' for first completer wins, else the fence. Items: `stages` times {name, default
-- next stage or ''}, then any of {"move", id, stage, entry, delivery count, kept (1 there is a result, 0 none),
-- result, next stage ('' ends it), failed, number of children, children...}: the job leaves its stage, at once
-- when `failed` is '', else when its children have ended ("fail", "continue" or "cancel": what becomes of it when one
-- fails), each child {name, stage, delay, number of fields, fields... without its id} · {"event", id, stage}: what
-- flow_events told of · {"cancel", id}. At most 1,000 children.
-- @include record
-- @include typed
-- @include clock
-- @include own
-- @include levels
-- @include unnamed
-- @include take
-- @include fields
-- @include bury
-- @include ring
-- @include due
-- @include tell
-- @include warn
-- @include note
-- @include promote
-- @include put
local lane, index = KEYS[1], KEYS[2]
local worker, result_ttl, dead_limit, stages = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local known = recorded()
if known then return known end
local PARTS = {'jobs', 'wake', 'ids', 'leases', 'released', 'delayed', 'bodies', 'blocked', 'dead', 'stats', 'flows', 'events', 'control'}
local ABOVE = '^(.*)/(%d+)/[^/]*$' -- a child's id: its parent's, which of the parent's fan-outs, its name
local queues, runs, now = {}, 2 + #PARTS * stages, clock()
typed('ZCARD', index)
for i = 1, stages do
  local q = {next = ARGV[5 + 2 * i], levels = {n = 0}}
  for j, part in ipairs(PARTS) do q[part] = KEYS[2 + #PARTS * (i - 1) + j] end
  typed('XLEN', q.jobs, q.wake, q.dead)
  typed('HLEN', q.ids, q.released, q.bodies, q.blocked, q.stats)
  typed('ZCARD', q.leases, q.delayed, q.flows)
  queues[ARGV[4 + 2 * i]] = q
end
for i = runs + 1, #KEYS do typed('HLEN', KEYS[i]) end

local function get(run, what, id) return redis.call('HGET', run, what .. ':' .. id) end
local function set(run, what, id, value) redis.call('HSET', run, what .. ':' .. id, value) end
-- Where a job of a run is: active, blocked, done, dead or cancelled, and in which stage (the last one, of those that ended).
local function where(run, id) return string.match(get(run, 'at', id) or '', '^(%a+) (.*)$') end
-- The parent that waits for *id*, and the stage it waits in.
local function waiting(run, id)
  local parent, fan = string.match(id, ABOVE)
  if not parent then return nil end
  local how, stage = where(run, parent)
  if how == 'blocked' and (get(run, 'fan', parent) or '1') == fan then return parent, stage end
end
-- Whether each stage that the end of *id* may lead to is among ours: a newer declaration's worker has to do it otherwise.
local function able(run, id)
  while true do
    local parent, stage = waiting(run, id)
    if not parent then return true end
    local join = get(run, 'join', parent)
    if not queues[stage] or join ~= '' and not queues[join] then return false end
    id = parent
  end
end
local function enter(run, id, stage)
  local body = get(run, 'job', id)
  if not body then return end
  put(queues[stage], id, now, '', cmsgpack.unpack(body))
  set(run, 'at', id, 'active ' .. stage)
  if redis.call('HDEL', run, 'join:' .. id) == 1 then redis.call('HINCRBY', run, 'fan:' .. id, 1) end -- its next one is another
end
-- The children of *id* are to be cancelled: who comes for events does it, a page at a time.
local function mark(run, id)
  local children = get(run, 'children', id)
  for _, child in ipairs(children and cmsgpack.unpack(children) or {}) do
    local how, stage = where(run, child)
    local q = (how == 'active' or how == 'blocked') and queues[stage]
    if q and tonumber(redis.call('ZSCORE', q.flows, child) or 1) == 0 then redis.call('ZADD', q.flows, 5, child) end
  end
end
local function members(run)
  local packed = redis.call('HGET', run, 'index')
  return packed and cmsgpack.unpack(packed) or {}
end
local function close(run, id, how)
  local state = ({done = 'completed', dead = 'failed', cancelled = 'cancelled'})[how]
  for _, member in ipairs(members(run)) do redis.call('ZREM', index, member) end
  redis.call('HSET', run, 'state', state, 'ended', string.format('%.0f', now))
  redis.call('PEXPIRE', run, result_ttl)
end
-- *id* has ended: done, dead or cancelled. With its last child a parent goes on, dies, or ends in turn.
local function ended(run, id, how)
  while true do
    if how ~= 'dead' then redis.call('HDEL', run, 'job:' .. id) end
    if not string.match(id, ABOVE) then return close(run, id, how) end
    local parent, stage = waiting(run, id)
    if not parent then return end
    if how ~= 'done' then
      local failed = redis.call('HINCRBY', run, 'failed:' .. parent, 1)
      if failed == 1 and get(run, 'policy', parent) == 'cancel' then mark(run, parent) end
    end
    if redis.call('HINCRBY', run, 'pending:' .. parent, -1) > 0 then return end
    local q, join, failed = queues[stage], get(run, 'join', parent), tonumber(get(run, 'failed', parent))
    if tonumber(redis.call('ZSCORE', q.flows, parent) or 1) ~= 0 then return end -- it is, or is to be, cancelled
    local body = redis.call('HGET', q.blocked, parent)
    redis.call('HDEL', q.blocked, parent)
    redis.call('HDEL', q.ids, parent)
    redis.call('ZREM', q.flows, parent)
    if failed > 0 and get(run, 'policy', parent) ~= 'continue' then
      local own, headers = parse(cmsgpack.unpack(body))
      local children = #cmsgpack.unpack(get(run, 'children', parent))
      local reason = failed .. ' of ' .. children .. ' children failed, the last ' .. id
      own.attempt = own.attempt or '1'
      bury(q.dead, q.stats, dead_limit, reason, '', own.attempt - 1, compose(own, headers))
      note(q, 'dead', parent)
      set(run, 'at', parent, 'dead ' .. stage)
      how = 'dead'
    else
      redis.call('HINCRBY', q.stats, 'completed', 1)
      note(q, 'completed', parent)
      if join ~= '' then return enter(run, parent, join) end
      set(run, 'at', parent, 'done ' .. stage)
      how = 'done'
    end
    id = parent
  end
end
local function go(run, id, stage, target)
  if target ~= '' then return enter(run, id, target) end
  set(run, 'at', id, 'done ' .. stage)
  ended(run, id, 'done')
end
local function cancelled(run, id, stage, how)
  if how == 'blocked' then mark(run, id) end
  set(run, 'at', id, 'cancelled ' .. stage)
  if how ~= 'dead' then ended(run, id, 'cancelled') end -- else that has been counted
end
-- A dead letter was redriven: its end did not happen.
local function revive(run, id, stage)
  set(run, 'at', id, 'active ' .. stage)
  if not string.match(id, ABOVE) then
    redis.call('HSET', run, 'state', 'running')
    redis.call('HDEL', run, 'ended')
    redis.call('PERSIST', run)
    for _, member in ipairs(members(run)) do redis.call('ZADD', index, 0, member) end
  else
    local parent = waiting(run, id)
    if parent then
      redis.call('HINCRBY', run, 'failed:' .. parent, -1)
      redis.call('HINCRBY', run, 'pending:' .. parent, 1)
    end
  end
end
-- *id* waits for children; those that a run of it before created, and that have not failed, are not created again.
local function fan(run, id, stage, entry, deliveries, target, policy, children)
  local which, list, pending = get(run, 'fan', id) or '1', {}, 0
  local before = redis.call('HEXISTS', run, 'join:' .. id) == 1 -- it is the same fan-out once more
  for i, child in ipairs(children) do
    local name = id .. '/' .. which .. '/' .. child.name
    local how, last
    if before then how, last = where(run, name) end
    if how == 'dead' and queues[last] and redis.call('ZSCORE', queues[last].flows, name) == '4' then
      redis.call('ZADD', queues[last].flows, 0, name)
      set(run, 'at', name, 'active ' .. last)
      how = 'active'
    end
    list[i] = name
    if how ~= 'done' then pending = pending + 1 end
    if how ~= 'done' and how ~= 'active' and how ~= 'blocked' then
      local fields = {child.fields[1], child.fields[2], 'id', name}
      for j = 3, #child.fields do fields[#fields + 1] = child.fields[j] end
      put(queues[child.stage], name, now, child.delay, fields)
      redis.call('HSET', run, 'job:' .. name, cmsgpack.pack(fields), 'at:' .. name, 'active ' .. child.stage)
    end
  end
  redis.call('HSET', run, 'children:' .. id, cmsgpack.pack(list), 'fan:' .. id, which, 'pending:' .. id, pending,
    'failed:' .. id, 0, 'join:' .. id, target, 'policy:' .. id, policy)
  local q = queues[stage]
  if pending == 0 then
    redis.call('HINCRBY', q.stats, 'completed', 1)
    note(q, 'completed', id)
    return go(run, id, stage, target)
  end
  local fields = cmsgpack.unpack(get(run, 'job', id))
  fields[#fields + 1], fields[#fields + 2] = 'enq', string.match(entry, '^%d+')
  fields[#fields + 1], fields[#fields + 2] = 'attempt', string.format('%.0f', deliveries)
  redis.call('HSET', q.blocked, id, cmsgpack.pack(fields))
  redis.call('HSET', q.ids, id, 'blocked')
  redis.call('ZADD', q.flows, 0, id)
  set(run, 'at', id, 'blocked ' .. stage)
end
-- One stage of a job is done: whoever removes its entry moves it on.
local function move(run, item)
  local id, stage, entry, q = item.id, item.stage, item.entry, queues[item.stage]
  local how, at = where(run, id)
  local registered = redis.call('HGET', q.ids, id) == entry
  local score = registered and redis.call('ZSCORE', q.flows, id)
  local ours = score and (at == stage and (how == 'active' or how == 'dead') or not how and not string.match(id, ABOVE))
  if worker ~= '' and not own(q.jobs, worker, {entry}, {item.count})[1] then return 0 end
  if ours and not able(run, id) then return 0 end
  local known_job, fans = ours and get(run, 'job', id), item.policy ~= '' and score ~= '5'
  local body = ours and (fans or not known_job) and redis.call('XRANGE', q.jobs, entry, entry)[1]
  local row = body and redis.pcall('XPENDING', q.jobs, 'workers', entry, entry, 1)[1] -- none where there is no group
  local gone = redis.call('XDEL', q.jobs, entry)
  redis.call('XACK', q.jobs, 'workers', entry)
  if gone == 0 then return 0 end
  redis.call('ZREM', q.leases, entry)
  redis.call('HDEL', q.released, entry)
  if registered then redis.call('HDEL', q.ids, id) end
  if not ours then -- a job of no flow, with a flow's header; or one redriven that was created again before
    if registered then redis.call('ZREM', q.flows, id) end
    redis.call('HINCRBY', q.stats, 'completed', 1)
    note(q, 'completed', id)
    return 1
  end
  redis.call('ZREM', q.flows, id)
  if how ~= 'active' then revive(run, id, stage) end
  if body and not known_job then -- redriven so late that the run's state is gone
    local mine, headers = parse(body[2])
    mine.attempt, mine.enq = nil, nil
    set(run, 'job', id, cmsgpack.pack(compose(mine, headers)))
  end
  if item.kept then redis.call('HSET', run, 'result:' .. stage .. ':' .. id, item.result) end
  if fans then
    -- Should it die as a parent and be redriven, its token must go on growing.
    local deliveries = math.max(1, tonumber(parse(body[2]).attempt or 0) + (row and row[4] or 0))
    fan(run, id, stage, entry, deliveries, item.target, item.policy, item.children)
  else
    redis.call('HINCRBY', q.stats, 'completed', 1)
    note(q, 'completed', id)
    if score == '5' then cancelled(run, id, stage, 'active') else go(run, id, stage, item.target) end
  end
  return 1
end
-- Out of its queue; its holder is told.
local function remove(q, id)
  local gone, held = take(q, id)
  if gone > 0 then note(q, 'cancelled', id) end
  if held then warn(q.control, held) end
end
-- What happened to a job outside: 1 completed by itself, 2 died, 3 cancelled or deleted, 4 redriven; 5 to be cancelled.
local function event(run, id, stage)
  local q, how, at = queues[stage], where(run, id)
  local score = tonumber(redis.call('ZSCORE', q.flows, id) or 0)
  if score == 0 or not able(run, id) then return 0 end
  redis.call('ZREM', q.flows, id)
  if score == 5 then remove(q, id) end
  if score == 4 then
    local known = at == stage and (how == 'active' or how == 'dead')
    if known or not how and not string.match(id, ABOVE) then -- or else it was created again since, or its parents are gone
      redis.call('ZADD', q.flows, 0, id)
      if how ~= 'active' then revive(run, id, stage) end
    end
  elseif at == stage and (how == 'active' or how == 'blocked' or how == 'dead') then
    if score == 1 then
      if how == 'dead' then revive(run, id, stage) end
      go(run, id, stage, q.next)
    elseif score == 2 then
      set(run, 'at', id, 'dead ' .. stage)
      if how ~= 'dead' then ended(run, id, 'dead') end -- else it was redriven, and died again before we knew
    else
      cancelled(run, id, stage, how)
    end
  end
  return 1
end
local function cancel(run, id)
  local how, stage = where(run, id)
  local score = queues[stage] and tonumber(redis.call('ZSCORE', queues[stage].flows, id) or 0) or 0
  if score > 0 and score < 5 then -- what happened to it outside comes first: by that it may have ended
    event(run, id, stage)
    how, stage = where(run, id)
  end
  local q = (how == 'active' or how == 'blocked') and queues[stage]
  if not q or not able(run, id) then return 0 end
  redis.call('ZREM', q.flows, id)
  remove(q, id)
  cancelled(run, id, stage, how)
  return 1
end

local at, reply = 6 + 2 * stages, {}
while at <= #ARGV do
  local kind, id, run = ARGV[at], ARGV[at + 1], KEYS[runs + #reply + 1]
  if kind == 'event' then
    reply[#reply + 1] = event(run, id, ARGV[at + 2])
    at = at + 3
  elseif kind == 'cancel' then
    reply[#reply + 1] = cancel(run, id)
    at = at + 2
  else
    local item = {
      id = id, stage = ARGV[at + 2], entry = ARGV[at + 3], count = ARGV[at + 4], kept = ARGV[at + 5] == '1',
      result = ARGV[at + 6], target = ARGV[at + 7], policy = ARGV[at + 8], children = {},
    }
    local children = tonumber(ARGV[at + 9])
    at = at + 10
    for i = 1, children do
      local child, last = {name = ARGV[at], stage = ARGV[at + 1], delay = ARGV[at + 2], fields = {}}, at + 3 + ARGV[at + 3]
      for j = at + 4, last do child.fields[#child.fields + 1] = ARGV[j] end
      item.children[i] = child
      at = last + 1
    end
    reply[#reply + 1] = move(run, item)
  end
end
for i = 1, stages do tell_noted(queues[ARGV[4 + 2 * i]], worker) end
return answer(reply)
