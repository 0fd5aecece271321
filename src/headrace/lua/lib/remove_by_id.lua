-- Take a job out of a queue by its id, in whatever state but dead. Answers 1, or 0 when there is none; and the
-- entry, if somebody had leased it. *as*: what it counts as, 'cancelled' if not told.
-- @include is_entry_id
-- @include levels
local function remove_by_id(q, id, as)
  local entry, gone, held = redis.call('HGET', q.ids, id), 0, nil
  if not entry and is_entry_id(q, id) then entry = id end
  if entry == 'delayed' then
    gone = redis.call('ZREM', q.delayed, id)
    redis.call('HDEL', q.bodies, id)
    redis.call('HDEL', q.released, id)
  elseif entry == 'blocked' then
    gone = redis.call('HDEL', q.blocked, id)
  elseif entry then
    local stream, number = entry_of(q, entry)
    gone = stream and redis.call('XDEL', stream, number) or 0
    -- no group yet: nothing to acknowledge
    if stream == q.jobs and redis.pcall('XACK', q.jobs, 'workers', entry) == 1 then held = entry end
    redis.call('ZREM', q.leases, entry)
    redis.call('HDEL', q.released, entry)
  end
  redis.call('HDEL', q.ids, id)
  if gone == 1 then redis.call('HINCRBY', q.stats, as or 'cancelled', 1) end
  return gone, held
end
