-- Remove a job from a queue by its id, in any state but dead, and the records of its run. Answers 1, or 0 if there is no such job; and the entry,
-- if the job was leased. *as*: the counter to increment, 'cancelled' by default.
-- @feature flows
-- @include is_entry_id
-- @include retire
-- @include retire_delayed
-- @include runs
local function remove_by_id(q, id, as)
  local entry, gone, held = redis.call('HGET', q.ids, id), 0, false
  if not entry and is_entry_id(q, id) then entry = id end
  if entry == 'delayed' then
    gone = retire_delayed(q, id)
  elseif entry then
    if entry == 'blocked' then gone = redis.call('HDEL', q.blocked, id) else gone, held = remove_entry(q, entry) end
    redis.call('HDEL', q.ids, id)
  end
  if gone == 1 then
    runs.leave(q, id)
    redis.call('HINCRBY', q.stats, as or 'cancelled', 1)
  end
  return gone, held and entry or nil
end
