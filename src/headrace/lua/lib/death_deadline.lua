-- The deadline up to which workers are dead; nil while no worker may be declared dead. A live worker has had the time
-- to beat if workers have swept this queue for one *timeout* without a gap. Any workers count, so a worker that has
-- just started knows the dead at once. The field `pulse` keeps: the start of this time, the last sweep, until when to
-- wait, the last sweep before the gap, the shortest timeout of the sweeping workers, and the server's run. After a gap
-- every worker may look dead. If the server was away, the gap was longer than a timeout, or the clock went back, the
-- time starts again. After other gaps beats are under way, and only a worker that was late before the gap is dead.
-- Further answers: when all workers that are late now will be dead; the moment at which a worker that was very late
-- will have had that time as well, or 0 without such a worker; and the time of the last sweep, which is later than now
-- if the clock went back. A clock that went forward makes every worker very late since the last sweep.
local function death_deadline(stats, now, timeout)
  local kept = redis.call('HGET', stats, 'pulse') or ''
  local since, seen, quiet, before, least, run = string.match(kept, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%x*)$')
  since, seen, quiet, before = tonumber(since), tonumber(seen), tonumber(quiet), tonumber(before)
  least = math.min(timeout, tonumber(least) or timeout)
  local gap, long = seen and now - seen, 0
  if not gap or gap < 0 or gap > least / 2 then
    local info = redis.pcall('INFO', 'server')
    local same = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
    if not gap or gap < 0 or gap > least or same ~= run or same == '' then
      since, least, long = now, timeout, math.min(now, seen or now)
    end
    quiet, before, run = now + math.ceil(least / 4), seen or now, same
  end
  redis.call('HSET', stats, 'pulse', string.format('%.0f %.0f %.0f %.0f %.0f %s', since, now, quiet, before, least, run))
  local late = now - since >= timeout and (now >= quiet and now or before) or nil
  return late, math.max(since + timeout, quiet), late and now or long, seen or now
end
