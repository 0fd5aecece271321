-- The number of waiting jobs, which `max_waiting` bounds: all jobs except leased, suspended, blocked and dead ones.
-- *enough*: above this number the answer need not be exact.
local function backlog(q, enough)
  local there = redis.call('XLEN', q.jobs) + redis.call('ZCARD', q.delayed)
  for level = 1, q.levels.n do there = there + redis.call('XLEN', q.levels[level]) end
  if enough and there <= enough then return there end
  local summary = redis.pcall('XPENDING', q.jobs, 'workers')
  if summary.err then return there end -- there is no group, so nothing is leased
  for _, consumer in ipairs(summary[4] or {}) do
    if runs.suspended(consumer[1]) or not is_reserved(consumer[1]) then there = there - consumer[2] end
  end
  return there
end
-- Producers may wait for room: then `gate` in stats is '<until when> <largest backlog>'. Notify them once the backlog
-- is as small.
local function open_gate(q, gate, kept, now)
  local last, most = string.match(kept, '^(%d+) (%d+)$')
  local late = not last or tonumber(last) < now
  if not late and backlog(q, tonumber(most)) > tonumber(most) then return end
  redis.call('HDEL', q.stats, 'gate')
  if late then return end
  redis.call('XADD', gate, 'MAXLEN', 1, '*', 'g', '1')
  redis.call('PEXPIRE', gate, 60000)
end
