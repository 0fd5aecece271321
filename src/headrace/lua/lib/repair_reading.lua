-- The reading of a queue by `repair`, and the record of its repairs. The fragments repair_* are parts of that script. They read these
-- of its locals: `q`, `cursor`, `limit`, `dry`, `now`, `budget`, `found`, which are repairs by kind, and `looked`, the
-- number of names seen.
local function mended(kind, number) found[kind] = found[kind] + (number or 1) end
-- The pairs of a flat reply as a table.
local function by_name(reply)
  local named = {}
  for i = 1, #reply, 2 do named[reply[i]] = reply[i + 1] end
  return named
end
-- The facts of the group `workers` of a stream; nil without it.
local function group_of(stream)
  for _, group in ipairs(redis.pcall('XINFO', 'GROUPS', stream)) do
    local named = by_name(group)
    if named.name == 'workers' then return named end
  end
end
-- The ID of the last entry that a stream ever had; nil without the stream.
local function last_of(stream) return by_name(redis.pcall('XINFO', 'STREAM', stream))['last-generated-id'] end
-- The row of an entry in the pending list; nil without one, or without the group.
local function row_of(entry) return redis.pcall('XPENDING', q.jobs, 'workers', entry, entry, 1)[1] end
-- The fields of a job by the name of its entry; nil or false if it is gone.
local function job_at(name)
  local stream, entry = entry_of(q, name)
  local body = stream and string.match(entry, '^%d+%-%d+$') and redis.pcall('XRANGE', stream, entry, entry)[1]
  if body then weigh(budget, body[2]) end
  return body and body[1] == entry and parse(body[2])
end
-- Whether the job that *marker* names exists, and has this id.
local function carries(id, marker)
  if marker == 'delayed' then return redis.call('HEXISTS', q.bodies, id) == 1 end
  if marker == 'blocked' then return redis.call('HEXISTS', q.blocked, id) == 1 end
  local own = job_at(marker)
  return own and (own.id or marker) == id
end
-- A job takes its id, unless another job has it. Answers whether it did.
local ids_taken = {} -- on this page, for a dry run
local function take_id(id, marker)
  local present = redis.call('HGET', q.ids, id)
  if present == marker or ids_taken[id] then return false end
  if present and carries(id, present) then return false end
  redis.call('HSET', q.ids, id, marker)
  ids_taken[id] = dry
  mended('ids_taken')
  return present and true
end
-- The same before the ids are walked: in a dry run that walk finds the old owner of the id, which is replaced here.
local function take_id_early(id, marker)
  if take_id(id, marker) and dry then mended('ids_released', -1) end
end
