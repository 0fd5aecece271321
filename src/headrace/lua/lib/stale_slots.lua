-- Give back the slots of entries that are not leased any more: a worker of an older version, which knows no slots, ended
-- the lease, or a foreign command did. This looks at *most* held entries, chosen at random. Answers their number.
local function is_leased(q, entry)
  local row = redis.pcall('XPENDING', q.jobs, 'workers', entry, entry, 1)[1] -- none without a group
  return row and not is_reserved(row[2])
end
local function forget_stale_slots(q, most)
  if redis.call('EXISTS', q.held) == 0 then return 0 end
  local stale = {}
  for _, entry in ipairs(redis.call('HRANDFIELD', q.held, most)) do
    if not is_leased(q, entry) then stale[#stale + 1] = entry end
  end
  q.holding = nil
  holds.give_back(q, stale)
  return #stale
end
