-- Count the jobs in each state, the jobs that have left the queue, and the held entries (*q.held*, if that is given). A
-- run that sleeps is delayed, and a run that waits for a signal is blocked. A job in a line waits, or is parked. Answers
-- also which consumers hold entries.
local function count_states(q)
  local pending, parked, idle, limited, behind, behind_first = 0, 0, 0, 0, 0, 0
  local asleep, waits, lined, holding = 0, 0, 0, {}
  local length = redis.call('XLEN', q.jobs)
  for _, stream in ipairs(q.levels) do behind_first = behind_first + redis.call('XLEN', stream) end
  local summary = redis.pcall('XPENDING', q.jobs, 'workers')
  if not summary.err then
    pending = summary[1]
    for _, consumer in ipairs(summary[4] or {}) do
      holding[consumer[1]] = true
      local suspended = runs.state(consumer[1])
      if suspended == 'delayed' then
        asleep = tonumber(consumer[2])
      elseif suspended == 'blocked' then
        waits = tonumber(consumer[2])
      elseif is_lined(consumer[1]) then
        lined = lined + consumer[2]
      elseif is_parked(consumer[1]) then
        parked = parked + consumer[2]
      end
      if consumer[1] == 'idle' then idle = tonumber(consumer[2]) end
      if consumer[1] == 'limited' then limited = tonumber(consumer[2]) end
      if consumer[1] == 'behind' then behind = tonumber(consumer[2]) end
    end
  end
  local numbers = redis.call('HMGET', q.stats, 'enqueued', 'completed', 'cancelled', 'deleted', 'dead_trimmed', 'added')
  for i = 1, 6 do numbers[i] = tonumber(numbers[i] or 0) end
  numbers[1] = numbers[1] + math.max(0, (ever_added(q.jobs, q.levels) or 0) - numbers[6])
  local undelivered = idle + behind + lined
  local waiting, leased = length - pending + undelivered, pending - parked - undelivered - limited - asleep - waits
  if waiting < 0 then -- an entry that was removed by XDEL by hand, while in the pending list, is in no state any more
    waiting, leased = 0, leased + waiting
    if leased < 0 then parked, leased = parked + leased, 0 end
    if parked < 0 then asleep, parked = asleep + parked, 0 end
    if asleep < 0 then waits, asleep = waits + asleep, 0 end
  end
  return {waiting + behind_first, parked, leased, redis.call('ZCARD', q.delayed) + limited + asleep,
          redis.call('HLEN', q.blocked) + waits, redis.call('XLEN', q.dead), numbers[1], numbers[2], numbers[3], numbers[4],
          numbers[5], q.held and redis.call('HLEN', q.held) or 0}, holding
end
