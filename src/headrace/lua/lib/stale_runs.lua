-- Remove the records of runs whose job has left: a worker of an older version, which knows no records, completed it, or
-- its dead letter was trimmed. This looks at *most* records, chosen at random.
-- @include is_entry_id
-- @include runs
local function forget_stale_runs(q, most)
  if redis.call('EXISTS', q.steps) == 0 then return end
  local seen = {}
  for _, name in ipairs(redis.call('HRANDFIELD', q.steps, most)) do
    local id = string.match(name, '^[^\t]*')
    local run = not seen[id] and redis.call('HEXISTS', q.ids, id) == 0 and not is_entry_id(q, id) and runs.read(q.steps, id)
    seen[id] = true
    local letter = run and run.letter and redis.call('XRANGE', q.dead, run.letter, run.letter)[1]
    if run and not letter then runs.forget(q.steps, id) end
  end
end
