-- In a dry run of `repair` the walk of the jobs has mended nothing yet. These tell whether it would have removed all data
-- of an entry: with the entry, with its deadline, with the group, or because it is parked; or taken slots for it. See
-- repair_reading.
local lost_group = dry and group_of(q.wake) and not group_of(q.jobs)
local function dangles(entry) return dry and row_of(entry) and not job_at(entry) end
local function would_park(entry)
  local group = dry and not row_of(entry) and job_at(entry) and group_of(q.jobs)
  return group and not holds.is_after(entry, right_place(group['last-delivered-id'], last_of(q.jobs)))
end
local function would_hold(entry) return dry and q.agreed_on and job_at(entry) and is_leased(q, entry) end
local function would_be_stale(id)
  if not dry or string.sub(id, 1, 1) == '\n' then return false end
  local marker = redis.call('HGET', q.ids, id)
  if marker and carries(id, marker) then return false end
  return not job_at(id)
end
