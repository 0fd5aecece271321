-- Up to which deadline workers are dead: nil while nobody may be declared so. One who lives has had the time to say so
-- if this queue was looked after for one *timeout*, by whomever, without a gap: the evidence is the queue's, not the
-- caller's, so that a peer that has just started knows the dead at once. `pulse` keeps since when that is so, the last
-- look, until when to wait and the last look before that, the shortest timeout of those who look, and the server's run.
-- After a gap everybody may look dead: if the server was away, or the gap was longer than a timeout, or the clock went
-- back, the time starts anew; if not, their beats are on their way, and only who was late before it is dead. Answers,
-- too, when all who are late will be;
-- the moment at which whoever was late by far had had that time as well, 0 if there is none; and when the last look
-- was:
-- later than now, if the clock went back. A clock that went forward makes everybody late by far since the last look.
local function pulse(stats, now, timeout)
  local kept = redis.call('HGET', stats, 'pulse') or ''
  local since, seen, calm, before, least, run = string.match(kept, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%x*)$')
  since, seen, calm, before = tonumber(since), tonumber(seen), tonumber(calm), tonumber(before)
  least = math.min(timeout, tonumber(least) or timeout)
  local gap, long = seen and now - seen, 0
  if not gap or gap < 0 or gap > least / 2 then
    local info = redis.pcall('INFO', 'server')
    local same = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
    if not gap or gap < 0 or gap > least or same ~= run or same == '' then
      since, least, long = now, timeout, math.min(now, seen or now)
    end
    calm, before, run = now + math.ceil(least / 4), seen or now, same
  end
  redis.call('HSET', stats, 'pulse', string.format('%.0f %.0f %.0f %.0f %.0f %s', since, now, calm, before, least, run))
  local late = now - since >= timeout and (now >= calm and now or before) or nil
  return late, math.max(since + timeout, calm), late and now or long, seen or now
end
