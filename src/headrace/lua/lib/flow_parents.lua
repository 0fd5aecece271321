-- Jobs of flows that wait for children: see flow_run.
local parents = {}
-- The parent that waits for *id*, and its place. The name is not enough: earlier fan-outs may have had a child of it.
function parents.waiting(run, id, job)
  local parent, fan = string.match(id, ABOVE)
  if not parent then return nil end
  local at = where(run, parent)
  if at.how ~= 'blocked' or (get(run, 'fan', parent) or '1') ~= fan then return nil end
  if (get(run, 'fanout', parent) or '') == job.of then return parent, at end
end
function parents.children(run, id) return strings_of(get(run, 'children', id)) or {} end
-- Whether each stage that the end of *id* may lead to is among ours: otherwise a worker with a newer declaration must
-- do it.
function parents.known(run, id)
  while true do
    local parent, at = parents.waiting(run, id, where(run, id))
    if not parent then return true end
    local join = get(run, 'join', parent)
    if not queues[at.stage] or join ~= '' and not queues[join] then return false end
    id = parent
  end
end
-- Mark the children of *id* for cancelling: sweeps of events cancel them, a page at a time.
function parents.cancel_children(run, id)
  local children = parents.children(run, id)
  local marks = {}
  for from = 1, #children, 1000 do
    local fields = {}
    for i = from, math.min(#children, from + 999) do fields[#fields + 1] = 'at:' .. children[i] end
    for i, known in ipairs(redis.call('HMGET', run, unpack(fields))) do
      local child = children[from + i - 1]
      local how, stage, nonce = string.match(known or '', '^(%a+) (%S+) ?(%d*)')
      local lives = how == 'active' or how == 'blocked'
      local what, present = outside(lives and queues[stage], child)
      if present and what == NOTHING and same_entry(tonumber(nonce ~= '' and nonce or 0), present) then
        marks[stage] = marks[stage] or {}
        table.insert(marks[stage], string.format('%.0f', CANCELLING * NONCES + present))
        table.insert(marks[stage], child)
      end
    end
  end
  for i = 1, stages do
    local some = marks[names[i]]
    if some then redis.call('ZADD', queues[names[i]].flows, unpack(some)) end
  end
end
