-- Whether *id* is the name of an entry, whose job was enqueued without an id. No other job has this name. Also answers
-- the job's fields.
local function is_entry_id(q, id)
  if not string.match(id, '^%d+%-%d+%.?%d?$') then return false end
  local stream, entry = entry_of(q, id)
  local body = stream and redis.pcall('XRANGE', stream, entry, entry)[1] -- none for an error: no entry can have such numbers
  if not body or body[1] ~= entry then return false end
  for i = 1, #body[2], 2 do
    if body[2][i] == 'id' and body[2][i + 1] ~= '' then return body[2][i + 1] == id, body[2] end
  end
  return true, body[2]
end
