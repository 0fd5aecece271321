-- Remove a job from a queue by its id, in any state but dead, and the records of its run. Answers 1, or 0 if there is no
-- such job; and the entry, if the job was leased. *as*: the counter to increment, 'cancelled' by default.
local function remove_by_id(q, id, as)
  local entry, gone, leased = redis.call('HGET', q.ids, id), 0, false
  if not entry and not is_entry_id(q, id) then return 0 end
  if entry == 'delayed' then
    gone = depart_delayed(q, {id}, REMOVED)
  elseif entry == 'blocked' then
    gone = redis.call('HDEL', q.blocked, id)
    tell_of(q, {id}, REMOVED)
  else
    gone, leased = depart(q, {entry or id}, {ids = {entry and id}, what = REMOVED})
  end
  if gone == 0 or entry == 'blocked' then redis.call('HDEL', q.ids, id) end -- 0: a foreign command removed the entry
  if gone == 1 then
    redis.call('HINCRBY', q.stats, as or 'cancelled', 1)
  end
  return gone, leased and (entry or id) or nil
end
