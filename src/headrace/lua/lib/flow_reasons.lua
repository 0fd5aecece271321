-- Reasons for which jobs of flows are dead, or were cancelled: see flow_run.
local causes = {of_removal = 'its job was removed from its queue: cancelled, purged or deleted there'}
-- Keep why a job is dead, or was cancelled; nil if that says itself.
function causes.keep(run, id, why)
  if why then
    redis.call('HSET', run, 'why:' .. id, shortened(why, REASON_BYTES))
  else
    redis.call('HDEL', run, 'why:' .. id)
  end
end
-- Why a job died outside of the flow, as that script said. It is removed.
function causes.of_death(q, id)
  local why = redis.call('HGET', q.steps, runs.why(id))
  if not why then return 'its reason is not known' end
  redis.call('HDEL', q.steps, runs.why(id))
  return why == '' and 'no reason was given' or why
end
-- The first child that died, or else that was cancelled, and why, for the reason of its parent.
function causes.of_children(run, children)
  local first = nil
  for _, child in ipairs(children) do
    local how = where(run, child).how
    if how == 'dead' or how == 'cancelled' and not first then first = child end
    if how == 'dead' then break end
  end
  if not first then return '' end
  local why = get(run, 'why', first)
  return ', the first ' .. first .. (why and ': ' .. why or '')
end
-- Why a child that was marked for it is cancelled.
function causes.of_cancel(run, id)
  local parent = string.match(id, ABOVE)
  if not parent then return nil end
  if where(run, parent).how == 'cancelled' then return 'its parent was cancelled' end
  return 'another child of its parent failed'
end
