-- Runs whose job has left: a worker of an older version, which knows no records, completed it, or its dead letter was
-- trimmed.
local function is_stale_run(q, id)
  local letter = string.match(id, '^\n(%d+%-%d+)$')
  if letter then return not redis.call('XRANGE', q.dead, letter, letter)[1] end
  if redis.call('HEXISTS', q.ids, id) == 1 then return false end
  local entry = string.match(id, '^%d+%-%d+$') -- in the pending list, nearly always: then the job is not read
  if entry and redis.pcall('XPENDING', q.jobs, 'workers', entry, entry, 1)[1] or is_entry_id(q, id) then return false end
  return true
end
-- Remove the records of such runs. This looks at *most* records, chosen at random.
local function forget_stale_runs(q, most)
  if redis.call('EXISTS', q.steps) == 0 then return end
  local seen = {}
  for _, name in ipairs(redis.call('HRANDFIELD', q.steps, most)) do
    local id = string.match(name, '^[^\t]*')
    if not seen[id] and is_stale_run(q, id) then runs.forget(q.steps, id) end
    seen[id] = true
  end
end
-- Remove due times of entries that are no suspended runs: a worker that had lost its run completed the job. This looks
-- at *most* of them, chosen at random.
local function forget_stale_dues(q, most)
  for _, entry in ipairs(redis.call('ZRANDMEMBER', q.asleep, most)) do
    local row = redis.call('XPENDING', q.jobs, 'workers', entry, entry, 1)[1]
    if not (row and runs.suspended(row[2])) then redis.call('ZREM', q.asleep, entry) end
  end
end
