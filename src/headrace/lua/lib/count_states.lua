-- Count the jobs in each state, the jobs that have left the queue, and the held entries (*q.held*, if that is given). A
-- run that sleeps is delayed, and a run that waits for a signal is blocked. A job in a line waits, or is parked. Answers
-- also how many entries each consumer holds.
local function count_states(q)
  local behind_first, parked, holding = 0, 0, {}
  local length = redis.call('XLEN', q.jobs)
  for _, stream in ipairs(q.levels) do behind_first = behind_first + redis.call('XLEN', stream) end
  local summary = redis.pcall('XPENDING', q.jobs, 'workers')
  for _, consumer in ipairs(summary[4] or {}) do
    local owner, number = consumer[1], tonumber(consumer[2])
    holding[owner] = number
    if is_parked(owner) and not is_lined(owner) and not runs.suspended(owner) then parked = parked + number end
  end
  local limited, asleep, waits = holding.limited or 0, holding[runs.ASLEEP] or 0, holding[runs.WAITS] or 0
  local numbers = redis.call('HMGET', q.stats, 'enqueued', 'completed', 'cancelled', 'deleted', 'dead_trimmed', 'added')
  for i = 1, 6 do numbers[i] = tonumber(numbers[i] or 0) end
  numbers[1] = numbers[1] + math.max(0, (ever_added(q.jobs, q.levels) or 0) - numbers[6])
  local pending = summary[1] or 0
  local undelivered = (holding.idle or 0) + (holding.behind or 0) + (holding['parked:new'] or 0)
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
