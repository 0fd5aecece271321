-- Fan-outs of flows' jobs: see flow_run.
-- A child as an earlier attempt has left it, with the mark that no call has handled yet. *before*: there was one.
local function child_before(run, name, before)
  if not before then return {} end
  local known = where(run, name)
  local q = known.how and queues[known.stage]
  if not q or outside(q, name) == NOTHING then return known end
  event(run, name, known.stage)
  return where(run, name)
end
-- *id* waits for children. Children from an earlier attempt that have not failed are not created again.
local function fan_out(run, id, job, entry, deliveries, target, policy, children, more)
  local which = get(run, 'fan', id) or '1'
  local before = redis.call('HEXISTS', run, 'join:' .. id) == 1 -- the same fan-out again
  local nonce = reserve_nonces(run, now, #children + 1)
  local of = string.format('%.0f', nonce)
  local above = id .. '/' .. which .. '/'
  local list = {} -- the ids of all children
  local pending = 0 -- how many have not ended
  local created = 0
  local entering = {} -- new jobs by their stage
  local kept = {} -- fields of the run
  for i, child in ipairs(children) do
    local name = above .. child.fields[4]
    local known = child_before(run, name, before)
    list[i] = name
    if known.how ~= 'done' then pending = pending + 1 end
    if goes_on(known) then
      known.of = of
      set_place(run, name, known, known.how)
    elseif known.how ~= 'done' then
      child.fields[4] = name
      child.nonce = string.format('%.0f', nonce + i)
      entering[child.stage] = entering[child.stage] or {}
      table.insert(entering[child.stage], child)
      local last = #kept
      kept[last + 1] = 'at:' .. name
      kept[last + 2] = 'active ' .. child.stage .. ' ' .. child.nonce .. ' ' .. of
      if queues[child.stage].next ~= '' then
        kept[last + 3], kept[last + 4], kept[last + 5], kept[last + 6] = kept_as(name, child.fields)
      end
      created = created + 1
    end
  end
  if not before then
    table.insert(kept, 'fanned:' .. above)
    table.insert(kept, string.format('%.0f', now))
  end
  for i = 1, stages do enter_stage_together(queues[names[i]], now, entering[names[i]] or {}) end
  if #kept > 0 then redis.call('HSET', run, unpack(kept)) end
  if created > 0 then count_live(run, created) end
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
  local last = #fields
  fields[last + 1], fields[last + 2] = 'enq', string.match(entry, '^%d+')
  fields[last + 3], fields[last + 4] = 'attempt', string.format('%.0f', deliveries)
  fields[last + 5], fields[last + 6] = 'headrace-nonce', string.format('%.0f', job.nonce)
  if more.attempts then fields[last + 7], fields[last + 8] = 'headrace-attempts', more.attempts end
  redis.call('HSET', q.blocked, id, cmsgpack.pack(fields))
  redis.call('HSET', q.ids, id, 'blocked')
  set_mark(q.flows, id, NOTHING, job.nonce)
  set_place(run, id, job, 'blocked')
end
