-- The ends of jobs of flows for the histories of their queues, which are written at the end of the script: see flow_run.
-- *more* has the known facts of the job, as keep_ends has them.
local histories = {room = runs.room(), CHILDREN_BYTES = 16384}
function histories.add(q, state, id, more)
  if not q.history then return end
  q.over = q.over or {completed = {}, cancelled = {}, dead = {}}
  more.id = id
  table.insert(q.over[state], more)
end
function histories.note(q, state, id, more)
  note_event(q, state, id)
  histories.add(q, state, id, more)
end
-- Of two ends of one job in one script, the later state counts.
function histories.write(q)
  if not q.over then return end
  for _, state in ipairs({'completed', 'cancelled', 'dead'}) do keep_ends(q.history, q.ends, q.ended, state, q.over[state]) end
end
-- The end of a job whose entry, of this *body*, is about to be removed; *row* is its own of the pending list.
function histories.of_entry(q, id, entry, body, row)
  if not q.history then return {} end
  local own, headers = parse(body[2])
  local count = tonumber(own.attempt or 0) + (row and row[4] or 0)
  local releases = tonumber(redis.call('HGET', q.released, entry) or 0) or 0
  own.enq = own.enq or string.match(entry, '^%d+')
  return {
    attempt = string.format('%.0f', math.max(1, count - releases)),
    worker = row and row[2],
    attempts = own.attempts,
    fields = compose(own, headers),
    run = runs.kept(q.steps, id, histories.room),
    delivery = count,
  }
end
-- Add the places of a job's children to its fields: how many have completed, failed and were cancelled, and the id, the
-- last stage and the state of each, as far as 16 KiB go.
function histories.add_children(q, run, fields, children)
  if not q.history or #children == 0 then return fields end
  local numbers = {done = 0, dead = 0, cancelled = 0}
  local rows = {}
  local size = 0
  for _, child in ipairs(children) do
    local job = where(run, child)
    local how = job.how or ''
    if numbers[how] then numbers[how] = numbers[how] + 1 end
    rows[#rows + 1] = '\30' .. child .. '\31' .. (job.stage or '') .. '\31' .. how
    size = size + #rows[#rows]
    if size > histories.CHILDREN_BYTES then table.remove(rows) end
  end
  local counted = string.format('%.0f %.0f %.0f', numbers.done, numbers.dead, numbers.cancelled)
  table.insert(fields, 'headrace-children')
  table.insert(fields, counted .. table.concat(rows))
  return fields
end
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
  return {fields = more.fields, run = more.run, delivery = more.delivery}
end
