-- The place of the job with this id ('delayed', 'blocked', or the name of its entry), its fields, and its level, if it waits
-- behind the first; nil if there is none.
local function job_by_id(q, id)
  local entry, is_one, fields = redis.call('HGET', q.ids, id), false, nil
  if entry == 'delayed' or entry == 'blocked' then
    local body = redis.call('HGET', entry == 'delayed' and q.bodies or q.blocked, id)
    if body then return entry, stored(body) end
    return nil
  end
  if not entry then
    is_one, fields = is_entry_id(q, id)
    if not is_one then return nil end
    entry = id
  end
  local stream, number, level = entry_of(q, entry)
  local row = not fields and stream and redis.call('XRANGE', stream, number, number)[1]
  fields = fields or row and row[2]
  if fields then return entry, level and prioritised(fields, level) or fields, level end
end
