-- Places in lines whose jobs are gone.
-- Whether a member of `lines` is of a job that is in a line.
local function is_place(q, member)
  local place = string.match(member, ' (%l%d+%l%d+)%+?=?[%d.e+-]*$')
  local entry = place and holds.entry(place)
  local row = entry and redis.pcall('XPENDING', q.jobs, 'workers', entry, entry, 1)[1]
  return row and is_in_line(row[2])
end
-- Remove places that a cancellation, or a foreign command, has left. They do no harm: the lease that picks one drops it.
-- This looks at *most* places, chosen at random; if no job is in a line, all of them are removed.
local function tidy_lines(q, most)
  if redis.call('EXISTS', q.lines) == 0 then
    holds.unshield(q)
    return
  end
  local function has_none(owner) return not redis.pcall('XPENDING', q.jobs, 'workers', '-', '+', 1, owner)[1] end
  if has_none('parked:new') and has_none('parked:front') then
    redis.call('UNLINK', q.lines, q.ready, q.stopped, q.resting, q.shares)
    holds.unshield(q)
    return
  end
  for _, member in ipairs(most > 0 and redis.call('ZRANDMEMBER', q.lines, most) or {}) do
    if not is_place(q, member) then redis.call('ZREM', q.lines, member) end
  end
end
