-- Whether *id* belongs to a job that was enqueued without an id. It is then the name of the job's entry, and of no
-- other job. Also answers the job's fields.
-- @include levels
local function is_entry_id(q, id)
  if not string.match(id, '^%d+%-%d+%.?%d?$') then return false end
  local stream, entry = entry_of(q, id)
  local body = stream and redis.pcall('XRANGE', stream, entry, entry)[1] -- none for an error: numbers that no entry can have
  if not body or body[1] ~= entry then return false end
  for i = 1, #body[2], 2 do
    if body[2][i] == 'id' and body[2][i + 1] ~= '' then return body[2][i + 1] == id, body[2] end
  end
  return true, body[2]
end
