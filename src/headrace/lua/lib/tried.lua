-- The reason, traceback and attempts of a retried job that has the turn of its key. Other retried jobs have them in
-- their fields. But this job's entry stays, and an entry can't be changed. So `turns` has them as 'a<entry>', packed
-- like a job's fields, until the entry leaves the queue.
local tried = {}
function tried.read(turns, entry)
  if tried.there == nil then tried.there = redis.call('EXISTS', turns) == 1 end
  return tried.there and redis.call('HGET', turns, 'a' .. entry) or nil
end
-- Add them to a job's own fields.
function tried.add(turns, entry, own)
  local kept = tried.read(turns, entry)
  if not kept then return end
  local last = parse(strings_of(kept) or {})
  own.reason, own.traceback, own.attempts = last.reason, last.traceback, last.attempts
end
-- The same for all fields of a job. Answers them. A *budget* pays for the bytes that this reads.
function tried.fields(turns, entry, fields, budget)
  local kept = tried.read(turns, entry)
  if not kept then return fields end
  if budget then budget.left = budget.left - #kept end
  local own, headers = parse(fields)
  tried.add(turns, entry, own)
  return compose(own, headers)
end
-- Keep the reason, traceback and attempts of a job's own fields. Earlier ones are overwritten.
function tried.keep(turns, entry, own)
  local kept = compose({reason = own.reason, traceback = own.traceback, attempts = own.attempts}, {})
  if #kept > 0 then redis.call('HSET', turns, 'a' .. entry, cmsgpack.pack(kept)) else redis.call('HDEL', turns, 'a' .. entry) end
end
